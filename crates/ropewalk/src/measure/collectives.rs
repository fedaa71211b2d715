//! Timings of collectives.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use clap::ValueEnum;
use fabric::{Fabric, FabricError, Joined, Number, Operator, Team};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The most calls between two looks at the clock of rank 0, which tells the others how to go on.
const CALLS_PER_LOOK: u64 = 100;
/// How long the ranks may try which way of reducing is fastest.
const TUNING: Duration = Duration::from_millis(200);
/// How long a rank with a core of its own keeps looking for what comes, as others' ranks do: nobody else wants the core.
const SPIN: Duration = Duration::from_millis(2);
/// Calls that do not count.
const WARM_UP_CALLS: u32 = 20;

/// The operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Collective {
    /// The sum of all ranks' buffers, to all
    AllReduce,
    /// The sums, each rank's part to that rank
    ReduceScatter,
    /// Each rank's part, to all
    AllGather,
    /// A part of each rank's buffer, to each
    AllToAll,
    /// One rank's buffer, to all
    Broadcast,
    /// Nothing but arrival
    Barrier,
}

/// The type of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Dtype {
    #[default]
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Measure collectives.
#[derive(Serialize, Deserialize)]
pub(crate) struct CollectivesJob {
    pub(crate) collectives: Vec<Collective>,
    pub(crate) dtype: Dtype,
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
pub(crate) fn measure_collectives(joined: Joined, job: &CollectivesJob) -> anyhow::Result<()> {
    let rank = joined.rank;
    super::measure::<Vec<Timing>>(joined, |fabric| {
        if job.pin {
            pin(rank);
            fabric.set_spin(SPIN);
        }
        measure_all(fabric, job)
    })
}

fn measure_all(fabric: &mut Fabric, job: &CollectivesJob) -> anyhow::Result<Vec<Timing>> {
    let team = Team::of_range(0..fabric.size(), fabric.rank())?;
    let transport = transports(fabric);
    fabric.tune(TUNING)?;
    let mut rows = Vec::new();
    for &collective in &job.collectives {
        for &bytes in &job.sizes {
            let times = match job.dtype {
                Dtype::F32 => measure::<f32>(fabric, &team, collective, bytes, job.budget),
                Dtype::F16 => measure::<f16>(fabric, &team, collective, bytes, job.budget),
                Dtype::Bf16 => measure::<bf16>(fabric, &team, collective, bytes, job.budget),
            }?;
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
fn measure<T: Countable>(
    fabric: &mut Fabric,
    team: &Team,
    collective: Collective,
    bytes: usize,
    budget: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let mut work = Work::<T>::new(collective, bytes, team);
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
        let calls = if times.is_empty() || started.elapsed() < budget { calls_per_look } else { 0 };
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

/// Numbers that can be told from one another.
trait Countable: Number + PartialEq {
    const ZERO: Self;
    fn from_index(index: usize) -> Self;
}

impl Countable for f32 {
    const ZERO: Self = 0.0;
    fn from_index(index: usize) -> Self {
        index as f32
    }
}

impl Countable for f16 {
    const ZERO: Self = f16::ZERO;
    fn from_index(index: usize) -> Self {
        f16::from_f32(index as f32)
    }
}

impl Countable for bf16 {
    const ZERO: Self = bf16::ZERO;
    fn from_index(index: usize) -> Self {
        bf16::from_f32(index as f32)
    }
}

/// One operation and its buffers.
struct Work<T> {
    collective: Collective,
    buffer: Vec<T>,
    /// Where an operation puts its results that does not leave them in the buffer.
    target: Vec<T>,
    /// What each member has or gets.
    parts: Vec<Range<usize>>,
}

impl<T: Countable> Work<T> {
    fn new(collective: Collective, bytes: usize, team: &Team) -> Self {
        let width = bytes / size_of::<T>();
        let bound = |index: usize| width * index / team.len();
        let parts = (0..team.len()).map(|index| bound(index)..bound(index + 1)).collect();
        let target = if collective == Collective::AllToAll { vec![T::ZERO; width] } else { Vec::new() };
        Self { collective, buffer: vec![T::ZERO; width], target, parts }
    }

    /// Makes one call of which the result is known, and leaves zeros, which stay what they are however often they are
    /// added up.
    fn check(&mut self, fabric: &mut Fabric, team: &Team) -> anyhow::Result<()> {
        let own = team.index();
        self.buffer.fill(T::from_index(own + 1));
        self.call(fabric, team)?;
        let sum = T::from_index((1..=team.len()).sum());
        let all_are = |elements: &[T], value: T| elements.iter().all(|&element| element == value);
        let from_each =
            |elements: &[T]| (0..team.len()).all(|i| all_are(&elements[self.parts[i].clone()], T::from_index(i + 1)));
        let right = match self.collective {
            Collective::AllReduce => all_are(&self.buffer, sum),
            Collective::ReduceScatter => all_are(&self.buffer[self.parts[own].clone()], sum),
            Collective::AllGather => from_each(&self.buffer),
            Collective::AllToAll => from_each(&self.target),
            Collective::Broadcast => all_are(&self.buffer, T::from_index(1)),
            Collective::Barrier => true,
        };
        ensure!(right, "{:?} of {} elements gave a wrong result", self.collective, self.buffer.len());
        self.buffer.fill(T::ZERO);
        Ok(())
    }

    fn call(&mut self, fabric: &mut Fabric, team: &Team) -> Result<(), FabricError> {
        let buffer = &mut self.buffer;
        match self.collective {
            Collective::AllReduce => fabric.all_reduce(team, Operator::Sum, buffer),
            Collective::ReduceScatter => fabric.reduce_scatter(team, Operator::Sum, &self.parts, buffer),
            Collective::AllGather => fabric.all_gather(team, 1, buffer.len(), &self.parts, buffer),
            Collective::AllToAll => fabric.all_to_all(team, buffer, &mut self.target),
            Collective::Broadcast => fabric.broadcast_into(team, 0, buffer),
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
