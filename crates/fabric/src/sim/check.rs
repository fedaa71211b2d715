//! What must have come of a simulation.

use std::time::Duration;

use super::group::LIVENESS_DEADLINE;
use super::rank::Outcome;
use super::scenario::{Fault, Scenario};
use crate::error::{Cause, FabricError};

/// What a survivor may take longer than the deadline.
const GRACE: Duration = Duration::from_millis(100);

/// Looks at what all processes have come to; `struck` tells when each met its fault.
pub(super) fn check(scenario: &Scenario, outcomes: &[Vec<Outcome>], struck: &[Option<Duration>]) {
    // Ranks that do different things may all wait for each other, without a message that would show it. The deadline for
    // waits ends that, at the cost of one of them.
    if scenario.dissenter.is_some() && outcomes.iter().flatten().any(is_stall) {
        let failed = |outcomes: &Vec<Outcome>| outcomes.iter().any(|it| matches!(it, Outcome::Failed { .. }));
        return assert!(outcomes.iter().all(failed), "not all have noticed: {outcomes:?}");
    }
    for &survivor in &scenario.survivors() {
        check_failures(scenario, &outcomes[survivor], struck);
        if scenario.survivors_meet() {
            check_end(scenario, &outcomes[survivor]);
        }
    }
    check_agreement(scenario, outcomes);
    for (_, fault) in &scenario.faults {
        if let Fault::Stop(victim, Some(_)) = fault
            && let Some(Outcome::Failed { error, .. }) = outcomes[*victim].last()
        {
            // It may have lost another one before.
            let excluded = matches!(error, FabricError::Excluded { .. });
            assert!(excluded || scenario.faults.len() > 1, "woken up, {victim} says: {error}");
        }
    }
}

fn is_stall(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed { error: FabricError::PeerLost { cause: Cause::Stalled(_), .. }, .. })
}

/// Every failure names a rank that is lost, in time, or a mismatch where there is one.
fn check_failures(scenario: &Scenario, outcomes: &[Outcome], struck: &[Option<Duration>]) {
    for outcome in outcomes {
        match outcome {
            Outcome::Failed { at, error: FabricError::PeerLost { rank, .. }, processes } => {
                let culprit = processes[*rank];
                let Some(since) = struck[culprit] else {
                    panic!("process {culprit} is blamed, which lives: {outcomes:?}")
                };
                let took = at.saturating_sub(since);
                assert!(took <= LIVENESS_DEADLINE + GRACE, "the loss of {culprit} was noticed after {took:?}");
            }
            Outcome::Failed { error: FabricError::Mismatch { .. }, .. } => {
                assert!(scenario.dissenter.is_some(), "a mismatch although all do the same: {outcomes:?}");
            }
            Outcome::Failed { error, .. } => panic!("unexpected: {error}"),
            Outcome::Alone(error) => {
                let expected = matches!(error, FabricError::CoordinatorLost { cause: Cause::Closed });
                assert!(scenario.while_forming && expected, "no group: {error}");
            }
            Outcome::Formed { .. } | Outcome::Done => {}
        }
    }
}

/// A survivor has done all its work in the end, in a group without those that are lost.
fn check_end(scenario: &Scenario, outcomes: &[Outcome]) {
    assert!(matches!(outcomes.last(), Some(Outcome::Done)), "it did not come to its end: {outcomes:?}");
    let formed = outcomes.iter().rev().find_map(|outcome| match outcome {
        Outcome::Formed { rank, processes, .. } => Some((*rank, processes)),
        _ => None,
    });
    let (rank, processes) = formed.expect("a group was there");
    let survivors = scenario.survivors();
    assert!(survivors.iter().all(|survivor| processes.contains(survivor)), "someone was left out of {processes:?}");
    assert!(rank < processes.len());
    if scenario.faults.len() < 2 {
        assert_eq!(processes.len(), survivors.len(), "of {processes:?}");
    }
    let failed = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Failed { .. })).count();
    if let (Some(_), 0) = (scenario.dissenter, failed) {
        panic!("the dissent was not noticed");
    }
}

/// All members of a group have the same idea of it.
fn check_agreement(scenario: &Scenario, outcomes: &[Vec<Outcome>]) {
    let mut groups: Vec<(u32, &Vec<usize>)> = Vec::new();
    for survivor in scenario.survivors() {
        for outcome in &outcomes[survivor] {
            let Outcome::Formed { rank, processes, generation } = outcome else { continue };
            assert_eq!(processes[*rank], survivor);
            match groups.iter().find(|(other, _)| other == generation) {
                Some((_, others)) => assert_eq!(*others, processes, "generation {generation}"),
                None => groups.push((*generation, processes)),
            }
        }
    }
}
