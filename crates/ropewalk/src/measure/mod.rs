//! Measurements of the fabric: what the ranks do, and how the command gathers what they found.

mod collectives;

use std::time::Duration;

use anyhow::{Context, bail};
use fabric::{Joined, LinkMeasurement, ProbeOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use self::collectives::{Collective, CollectivesJob, Dtype, Timing, measure_collectives};
use crate::group::Gathering;
use crate::job::RankJob;

/// How long to wait for a message at a time; the end of the other side wakes at once.
const LISTEN: Duration = Duration::from_secs(60);

/// Measure all links of the group.
#[derive(Serialize, Deserialize)]
pub(crate) struct LinksJob {
    pub(crate) options: ProbeOptions,
}

/// A rank's part in a measurement of links.
pub(crate) fn measure_links(mut joined: Joined, job: &LinksJob) -> anyhow::Result<()> {
    let measured = joined.fabric.probe(&job.options);
    report::<Vec<LinkMeasurement>>(joined, measured.map_err(Into::into))
}

/// Tells the command what came of it, and waits until the command has heard all ranks, so that no rank's end is taken for
/// a failure by another.
fn report<T: Serialize>(mut joined: Joined, result: anyhow::Result<T>) -> anyhow::Result<()> {
    let told = result.as_ref().map_err(|error| format!("{error:#}"));
    joined.control.send(&serde_json::to_vec(&told)?)?;
    while let Ok(None) = joined.control.recv(LISTEN) {}
    result.map(|_| ())
}

/// Has the ranks of a group do a job, and returns what each has found, by rank.
pub(crate) fn gather_reports<T: DeserializeOwned>(gathering: Gathering, job: &RankJob) -> anyhow::Result<Vec<T>> {
    let (mut controls, _children) = gathering.finish(&serde_json::to_vec(job)?)?;
    let mut reports = Vec::with_capacity(controls.len());
    for (rank, control) in controls.iter_mut().enumerate() {
        let bytes = loop {
            if let Some(bytes) = control.recv(LISTEN)? {
                break bytes;
            }
        };
        let told: Result<T, String> =
            serde_json::from_slice(&bytes).with_context(|| format!("rank {rank} runs another version of ropewalk"))?;
        match told {
            Ok(report) => reports.push(report),
            Err(why) => bail!("rank {rank} failed: {why}"),
        }
    }
    Ok(reports)
}
