//! Measurements: of the machine and its kernels; and of the fabric, what the ranks do and how the command gathers what
//! they found.

mod collectives;
pub(crate) mod kernels;
pub(crate) mod limits;
pub(crate) mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use fabric::{ControlReceiver, Fabric, Joined, LinkMeasurement, ProbeOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use self::collectives::{Collective, CollectivesJob, Dtype, Timing, measure_collectives};
use crate::group::Gathering;
use crate::job::RankJob;

/// How long a rank waits for a message at a time; the end of the other side wakes at once.
const LISTEN: Duration = Duration::from_secs(60);
/// How long the command waits for one rank before it looks at the next.
const GLANCE: Duration = Duration::from_millis(5);
/// How long a rank that has told its result waits for the command to hear the others.
const FAREWELL: Duration = Duration::from_secs(10);

/// Measure all links of the group.
#[derive(Serialize, Deserialize)]
pub(crate) struct LinksJob {
    pub(crate) options: ProbeOptions,
}

/// A rank's part in a measurement of links.
pub(crate) fn measure_links(joined: Joined, job: &LinksJob) -> anyhow::Result<()> {
    measure::<Vec<LinkMeasurement>>(joined, |fabric| Ok(fabric.probe(&job.options)?))
}

/// Measures, and tells the command what came of it. Ends at once when the command does.
fn measure<T: Serialize>(joined: Joined, work: impl FnOnce(&mut Fabric) -> anyhow::Result<T>) -> anyhow::Result<()> {
    let Joined { rank, control, mut fabric, .. } = joined;
    let (mut control, receiver) = control.split();
    let told = Arc::new(AtomicBool::new(false));
    let ended = watch_command(rank, receiver, Arc::clone(&told))?;
    let result = work(&mut fabric);
    let report = serde_json::to_vec(&result.as_ref().map_err(|error| format!("{error:#}")))?;
    told.store(true, Ordering::Relaxed);
    if control.send(&report).is_ok() {
        // The command closes the connection when it has heard all ranks: no rank's end is taken for a failure by another.
        let _ = ended.recv_timeout(FAREWELL);
    }
    result.map(|_| ())
}

/// Ends this process when the command ends before it has been told the result, and says when it ends after that.
fn watch_command(rank: usize, mut receiver: ControlReceiver, told: Arc<AtomicBool>) -> anyhow::Result<Receiver<()>> {
    let (sender, ended) = channel();
    let watch = move || {
        while receiver.recv(LISTEN).is_ok() {}
        if !told.load(Ordering::Relaxed) {
            eprintln!("error: rank {rank}: the command that started the measurement has ended");
            std::process::exit(1);
        }
        // Nobody listens any more when the rank has waited for long enough.
        let _ = sender.send(());
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(watch).context("cannot start a thread")?;
    Ok(ended)
}

/// Has the ranks of a group do a job, and returns what each has found, by rank.
pub(crate) fn gather_reports<T: DeserializeOwned>(gathering: Gathering, job: &RankJob) -> anyhow::Result<Vec<T>> {
    let (controls, children) = gathering.finish(&serde_json::to_vec(job)?)?;
    // Dropped after the controls, by whose end the ranks learn that they may end.
    let _children = children;
    let mut controls = controls;
    let mut reports: Vec<Option<T>> = controls.iter().map(|_| None).collect();
    while reports.iter().any(Option::is_none) {
        // Any rank may be the first that knows what went wrong, so that each gets its turn.
        let waiting = controls.iter_mut().zip(&mut reports).enumerate().filter(|(_, (_, report))| report.is_none());
        for (rank, (control, report)) in waiting {
            let Some(bytes) = control.recv(GLANCE)? else { continue };
            let told: Result<T, String> = serde_json::from_slice(&bytes)
                .with_context(|| format!("rank {rank} runs another version of ropewalk"))?;
            match told {
                Ok(told) => *report = Some(told),
                Err(why) => bail!("rank {rank} failed: {why}"),
            }
        }
    }
    Ok(reports.into_iter().flatten().collect())
}
