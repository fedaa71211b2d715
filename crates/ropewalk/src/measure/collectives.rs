//! Timings of collectives.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use clap::ValueEnum;
use fabric::{Fabric, FabricError, Joined, Team};
use serde::{Deserialize, Serialize};

use super::report;

/// The most calls between two looks at the clock of rank 0, which tells the others how to go on.
const CALLS_PER_LOOK: u64 = 100;
/// Calls that do not count.
const WARM_UP_CALLS: u32 = 20;

/// The operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Collective {
    /// The sum of all ranks' buffers, to all
    AllReduce,
    /// Each rank's part, to all
    AllGather,
    /// One rank's buffer, to all
    Broadcast,
    /// Nothing but arrival
    Barrier,
}

/// Measure collectives.
#[derive(Serialize, Deserialize)]
pub(crate) struct CollectivesJob {
    pub(crate) collectives: Vec<Collective>,
    /// Bytes of the whole buffer.
    pub(crate) sizes: Vec<usize>,
    /// How long each row is measured.
    pub(crate) budget: Duration,
    /// Whether each rank of this machine gets a core of its own.
    pub(crate) pin: bool,
}

/// One row, as rank 0 measured it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) collective: Collective,
    pub(crate) bytes: usize,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) calls: usize,
    pub(crate) transport: String,
}

/// A rank's part in a measurement of collectives.
pub(crate) fn measure_collectives(mut joined: Joined, job: &CollectivesJob) -> anyhow::Result<()> {
    if job.pin {
        pin(joined.rank);
    }
    let measured = measure_all(&mut joined.fabric, job);
    report::<Vec<Timing>>(joined, measured)
}

fn measure_all(fabric: &mut Fabric, job: &CollectivesJob) -> anyhow::Result<Vec<Timing>> {
    let team = Team::of_range(0..fabric.size(), fabric.rank())?;
    let transport = transports(fabric);
    let mut rows = Vec::new();
    for &collective in &job.collectives {
        for &bytes in &job.sizes {
            let times = measure(fabric, &team, collective, bytes, job.budget)?;
            let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
            rows.push(Timing {
                collective,
                bytes,
                median_us: at(50),
                p99_us: at(99),
                calls: times.len(),
                transport: transport.clone(),
            });
        }
    }
    Ok(rows)
}

/// What the links of this rank are made of.
fn transports(fabric: &Fabric) -> String {
    let mut names: Vec<_> =
        (0..fabric.size()).filter_map(|rank| fabric.transport(rank)).map(|it| it.to_string()).collect();
    names.sort();
    names.dedup();
    names.join(" and ")
}

/// Sorted times of single calls.
fn measure(
    fabric: &mut Fabric,
    team: &Team,
    collective: Collective,
    bytes: usize,
    budget: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let mut work = Work::new(collective, bytes, team);
    work.check(fabric, team)?;
    let warm_up = Instant::now();
    for _ in 0..WARM_UP_CALLS {
        work.call(fabric, team)?;
    }
    let looks = budget.as_secs_f64() / 10.0;
    let calls_per_look = looks / (warm_up.elapsed().as_secs_f64() / f64::from(WARM_UP_CALLS));
    let calls_per_look = (calls_per_look as u64).clamp(1, CALLS_PER_LOOK);
    let mut times = Vec::new();
    let started = Instant::now();
    loop {
        // All ranks have to make the same number of calls, which rank 0 decides.
        let calls = if started.elapsed() < budget { calls_per_look } else { 0 };
        let mut message = calls.to_le_bytes().to_vec();
        fabric.broadcast(team, 0, &mut message)?;
        let calls = u64::from_le_bytes(message.try_into().map_err(|_| anyhow!("rank 0 sent no number"))?);
        if calls == 0 {
            break;
        }
        for _ in 0..calls {
            let before = Instant::now();
            work.call(fabric, team)?;
            times.push(before.elapsed());
        }
    }
    times.sort_unstable();
    Ok(times)
}

/// One operation and its buffers.
struct Work {
    collective: Collective,
    buffer: Vec<f32>,
    message: Vec<u8>,
    parts: Vec<std::ops::Range<usize>>,
}

impl Work {
    fn new(collective: Collective, bytes: usize, team: &Team) -> Self {
        let width = bytes / size_of::<f32>();
        let bound = |index: usize| width * index / team.len();
        let parts = (0..team.len()).map(|index| bound(index)..bound(index + 1)).collect();
        Self { collective, buffer: vec![0.0; width], message: vec![0; bytes], parts }
    }

    /// Makes one call of which the result is known, and leaves zeros, which stay what they are however often they are
    /// added up.
    fn check(&mut self, fabric: &mut Fabric, team: &Team) -> anyhow::Result<()> {
        let value = |index: usize| index as f32 + 1.0;
        let own = team.index();
        match self.collective {
            Collective::AllReduce => self.buffer.fill(value(own)),
            Collective::AllGather => self.buffer[self.parts[own].clone()].fill(value(own)),
            Collective::Broadcast => self.message.fill(u8::from(own == 0)),
            Collective::Barrier => {}
        }
        self.call(fabric, team)?;
        let right = match self.collective {
            Collective::AllReduce => {
                let sum = (0..team.len()).map(value).sum::<f32>();
                self.buffer.iter().all(|&element| element == sum)
            }
            Collective::AllGather => {
                let is_right =
                    |index: usize| self.buffer[self.parts[index].clone()].iter().all(|&it| it == value(index));
                (0..team.len()).all(is_right)
            }
            Collective::Broadcast => self.message.iter().all(|&byte| byte == 1),
            Collective::Barrier => true,
        };
        ensure!(right, "{:?} of {} bytes gave a wrong result", self.collective, self.message.len());
        self.buffer.fill(0.0);
        Ok(())
    }

    fn call(&mut self, fabric: &mut Fabric, team: &Team) -> Result<(), FabricError> {
        match self.collective {
            Collective::AllReduce => fabric.all_reduce_sum(team, &mut self.buffer),
            Collective::AllGather => fabric.all_gather(team, 1, self.buffer.len(), &self.parts, &mut self.buffer),
            Collective::Broadcast => fabric.broadcast(team, 0, &mut self.message),
            Collective::Barrier => fabric.barrier(team),
        }
    }
}

/// Gives this thread a core of its own, as far as there are enough.
#[cfg(target_os = "linux")]
fn pin(rank: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let Some(&core) = cores.get(rank % cores.len().max(1)) else { return };
    let mut own = CpuSet::new();
    own.set(core);
    if let Err(error) = sched_setaffinity(None, &own) {
        tracing::warn!("cannot pin rank {rank} to core {core}: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn pin(_rank: usize) {}
