//! What the processes of a simulation do: ranks, and the coordinator.

use std::rc::Rc;
use std::time::Duration;

use super::Outcomes;
use super::group::{self, Group};
use super::process::Handle;
use super::random::Random;
use super::scenario::Scenario;
use super::work::{all_reduce, operate};
use crate::error::FabricError;
use crate::team::Team;

/// The times that the coordinator gathers a group, at most.
const GATHERINGS_MAX: u32 = 4;

/// What a rank has come to.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    Formed {
        rank: usize,
        processes: Vec<usize>,
        generation: u32,
    },
    /// A collective failed.
    Failed {
        at: Duration,
        error: FabricError,
        processes: Vec<usize>,
    },
    /// No group formed.
    Alone(FabricError),
    /// It has done all its work.
    Done,
}

/// Takes part until all work is done, with whatever group is left.
pub(super) async fn main(handle: Handle, scenario: Rc<Scenario>, outcomes: Outcomes) {
    let note = |outcome| outcomes.borrow_mut()[handle.id].push(outcome);
    let is_victim = scenario.is_victim(handle.id);
    let mut wish = scenario.wishes[handle.id];
    let mut group = loop {
        match group::join(&handle, scenario.size, wish).await {
            Ok(group) => break group,
            Err(error) => note(Outcome::Alone(error)),
        }
        if !scenario.while_forming || is_victim {
            return;
        }
        // The next group is smaller.
        wish = None;
    };
    loop {
        let Group { place, .. } = &group;
        let (rank, processes, generation) = (place.rank, place.processes.clone(), place.generation);
        note(Outcome::Formed { rank, processes: processes.clone(), generation });
        let Err(error) = work(&handle, &scenario, &mut group).await else { break };
        note(Outcome::Failed { at: handle.now(), error, processes });
        if is_victim || !scenario.survivors_meet() {
            return;
        }
        match group::reform(&handle, &mut group, 1).await {
            Ok(new) => group = new,
            Err(error) => return note(Outcome::Alone(error)),
        }
    }
    note(Outcome::Done);
}

/// Does collectives: without end where something is to happen to them.
async fn work(handle: &Handle, scenario: &Scenario, group: &mut Group) -> Result<(), FabricError> {
    let fabric = &mut group.fabric;
    fabric.set_tuning(scenario.tuning);
    let (rank, generation) = (fabric.rank(), fabric.generation());
    let mut random = Random::new(scenario.seed ^ u64::from(generation) << 32);
    let is_first = generation == 1;
    let goes_wrong = is_first && (!scenario.faults.is_empty() || scenario.dissenter.is_some());
    let mut count = 0;
    while goes_wrong || count < scenario.operations {
        let dissents = is_first && scenario.dissenter == Some((rank, count));
        operate(handle, fabric, &mut random, dissents).await?;
        count += 1;
    }
    let all = Team::of_range(0..fabric.size(), rank)?;
    all_reduce(handle, fabric, &all, 1 + random.below(500), 1).await?;
    let last = fabric.begin_barrier(&all)?;
    handle.complete(fabric, last).await
}

/// Gathers the group, and when that fails for want of a rank, a smaller one.
pub(super) async fn coordinate(handle: Handle, scenario: Rc<Scenario>) {
    let mut size = scenario.size;
    for generation in 1..=GATHERINGS_MAX {
        match group::gather(&handle, size, generation).await {
            Ok(()) => return,
            Err(error) => assert!(scenario.while_forming, "no group although nothing has happened: {error}"),
        }
        size = scenario.survivors().len();
    }
    panic!("no group after {GATHERINGS_MAX} gatherings");
}
