//! What happens in one simulation: a group forms over some cables, does collectives, loses ranks or disagrees, and forms
//! again.

use std::time::Duration;

use super::random::Random;
use crate::plan::Tuning;

const RANKS_MAX: usize = 6;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process ends.
    Kill(usize),
    /// The process does nothing any more, until it goes on after some time, if it does.
    Stop(usize, Option<Duration>),
    /// All cables of the process are out.
    Cut(usize),
}

impl Fault {
    pub(super) fn victim(&self) -> usize {
        match self {
            Self::Kill(victim) | Self::Stop(victim, _) | Self::Cut(victim) => *victim,
        }
    }
}

/// All that follows from a seed.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    /// The number of ranks, which are the processes 0.. of the simulation; the coordinator is the one after them.
    pub(super) size: usize,
    /// By pair of processes.
    pub(super) cables: Vec<Vec<bool>>,
    /// In order of time.
    pub(super) faults: Vec<(Duration, Fault)>,
    /// Whether the times of faults count from the start, and not from when the group has formed.
    pub(super) while_forming: bool,
    /// The rank that does something else than the others, and at which operation.
    pub(super) dissenter: Option<(usize, usize)>,
    /// The rank numbers that processes wish for.
    pub(super) wishes: Vec<Option<usize>>,
    pub(super) tuning: Tuning,
    /// The collectives that a group does which nothing happens to.
    pub(super) operations: usize,
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(!seed);
        let size = 2 + random.below(RANKS_MAX - 1);
        let mut scenario = Self {
            seed,
            size,
            cables: cables(size, &mut random),
            faults: Vec::new(),
            while_forming: false,
            dissenter: None,
            wishes: wishes(size, &mut random),
            tuning: tuning(&mut random),
            operations: 5 + random.below(20),
        };
        match random.below(16) {
            0 => {}
            1 | 2 => scenario.dissenter = Some((random.below(size), random.below(10))),
            3 | 4 if size > 2 => {
                let at = Duration::from_micros(random.below(6_000) as u64);
                scenario.faults.push((at, Fault::Kill(random.below(size))));
                // Those who are left must be able to form a group.
                scenario.while_forming = scenario.survivors_meet();
            }
            kind => {
                scenario.faults.push(fault(size, &mut random));
                // Sometimes two at once, or while the survivors form a new group.
                if kind < 8 && size > 3 {
                    let (at, another) = fault(size, &mut random);
                    let later = scenario.faults[0].0 + Duration::from_micros(random.below(9_000) as u64);
                    let is_new = another.victim() != scenario.faults[0].1.victim();
                    if is_new && !matches!(another, Fault::Stop(_, Some(_))) && at > Duration::ZERO {
                        scenario.faults.push((later, another));
                    }
                }
            }
        }
        scenario
    }

    /// The processes that nothing happens to.
    pub(super) fn survivors(&self) -> Vec<usize> {
        (0..self.size).filter(|process| !self.is_victim(*process)).collect()
    }

    pub(super) fn is_victim(&self, process: usize) -> bool {
        self.faults.iter().any(|(_, fault)| fault.victim() == process)
    }

    /// Whether the survivors still have cables between them, directly, so that they can meet.
    pub(super) fn survivors_meet(&self) -> bool {
        let survivors = self.survivors();
        survivors.iter().all(|&a| survivors.iter().all(|&b| a == b || self.cables[a][b]))
    }
}

fn fault(size: usize, random: &mut Random) -> (Duration, Fault) {
    let victim = random.below(size);
    let fault = match random.below(4) {
        0 | 1 => Fault::Kill(victim),
        2 => {
            let wakes = random.is_one_in(2).then(|| Duration::from_millis(1200 + random.below(2000) as u64));
            Fault::Stop(victim, wakes)
        }
        _ => Fault::Cut(victim),
    };
    (Duration::from_micros(1 + random.below(12_000) as u64), fault)
}

/// Cables that join all ranks, often each with each other. The coordinator has none: its letters travel all the same.
fn cables(size: usize, random: &mut Random) -> Vec<Vec<bool>> {
    let mut cables = vec![vec![false; size + 1]; size + 1];
    let mut join = |a: usize, b: usize| {
        (cables[a][b], cables[b][a]) = (a != b, a != b);
    };
    match random.below(5) {
        0 => (1..size).for_each(|rank| join(rank - 1, rank)),
        1 => (0..size).for_each(|rank| join(rank, (rank + 1) % size)),
        2 => {
            for rank in 1..size {
                join(rank, random.below(rank));
            }
            for _ in 0..random.below(2 * size) {
                join(random.below(size), random.below(size));
            }
        }
        _ => (0..size).for_each(|a| (0..a).for_each(|b| join(a, b))),
    }
    cables
}

/// Some ask for a number, and some for any.
fn wishes(size: usize, random: &mut Random) -> Vec<Option<usize>> {
    let mut numbers: Vec<usize> = (0..size).collect();
    for index in (1..size).rev() {
        numbers.swap(index, random.below(index + 1));
    }
    numbers.into_iter().map(|number| (!random.is_one_in(3)).then_some(number)).collect()
}

/// Thresholds at which small buffers are treated like large ones.
fn tuning(random: &mut Random) -> Tuning {
    let mut bytes = |bound: usize| 4 * (1 + random.below(bound));
    Tuning {
        pair_bytes_max: bytes(2000),
        one_shot_bytes_max: bytes(1000),
        chain_bytes_min: bytes(1000),
        chunk_bytes: bytes(300),
        part_bytes: bytes(500),
        star_bytes_max: bytes(1000),
    }
}
