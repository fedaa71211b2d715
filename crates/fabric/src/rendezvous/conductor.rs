//! The course of a group that forms, once all its ranks have come: pure, so that sockets and simulation drive the same.
//!
//! All ranks report whom they reach; the conductor tells all the shape of the whole group; all ranks report that their
//! links are up; the conductor lets all go. A rank that fails ends it, as the others would only wait for it. When it
//! fails because another one seems to be gone, that other one gets a moment to say why.

use std::time::Duration;

use super::formation::topology_of;
use super::wire::{Report, Shape};
use crate::error::{Cause, FabricError};

/// How long a rank that fails for another rank's sake is not yet believed to be the culprit.
const FOLLOWER_PATIENCE: Duration = Duration::from_millis(500);

/// What all ranks are to be told.
#[derive(Debug)]
pub(crate) enum Word {
    Shape(Shape),
    Go,
}

/// What ranks report, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Reaching,
    Linking,
    Done,
}

#[derive(Debug)]
pub(crate) struct Conductor {
    /// A number for the host of each rank.
    hosts: Vec<usize>,
    phase: Phase,
    /// By rank: what it has reported in this phase.
    reports: Vec<Option<Report>>,
    /// The first failure for another rank's sake.
    follower: Option<FabricError>,
    patience: Duration,
    by: Duration,
}

impl Conductor {
    /// Conducts ranks on these hosts, by rank, which may take `patience` for each phase.
    pub(crate) fn new(hosts: Vec<usize>, patience: Duration, now: Duration) -> Self {
        let reports = hosts.iter().map(|_| None).collect();
        Self { hosts, phase: Phase::Reaching, reports, follower: None, patience, by: now.saturating_add(patience) }
    }

    /// The ranks that have not reported in this phase.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = usize> {
        let done = self.phase == Phase::Done;
        let reports = self.reports.iter().enumerate();
        reports.filter(move |(_, report)| !done && report.is_none()).map(|(rank, _)| rank)
    }

    /// Whether all ranks have been let go.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// A rank has reported. Returns what all ranks are to be told then.
    ///
    /// # Errors
    /// Why the group cannot form.
    pub(crate) fn on_report(
        &mut self,
        rank: usize,
        report: Report,
        now: Duration,
    ) -> Result<Option<Word>, FabricError> {
        match (self.phase, &report) {
            (Phase::Reaching, Report::Reached { .. }) | (Phase::Linking, Report::Up) => {}
            (_, Report::Failed { why, follows }) => {
                let error = FabricError::JoinFailed { rank, why: why.clone() };
                if !follows {
                    return Err(error);
                }
                self.follower.get_or_insert(error);
                self.by = self.by.min(now.saturating_add(FOLLOWER_PATIENCE));
            }
            _ => return Err(FabricError::PeerLost { rank, cause: Cause::corrupt("it reported out of turn") }),
        }
        self.reports[rank] = Some(report);
        if self.reports.iter().any(Option::is_none) {
            return Ok(None);
        }
        self.advance(now).map(Some)
    }

    /// All have reported.
    fn advance(&mut self, now: Duration) -> Result<Word, FabricError> {
        if let Some(error) = self.follower.take() {
            return Err(error);
        }
        self.by = now.saturating_add(self.patience);
        let reports: Vec<Report> = self.reports.iter_mut().filter_map(Option::take).collect();
        if self.phase == Phase::Linking {
            self.phase = Phase::Done;
            return Ok(Word::Go);
        }
        self.phase = Phase::Linking;
        Ok(Word::Shape(shape_of(&self.hosts, &reports)))
    }

    /// A rank has gone, or said what makes no sense.
    pub(crate) fn on_gone(&self, rank: usize, cause: Cause) -> FabricError {
        FabricError::PeerLost { rank, cause }
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When ranks have taken too long.
    pub(crate) fn on_tick(&self, now: Duration) -> Result<(), FabricError> {
        match self.awaited().next() {
            Some(rank) if now >= self.by => {
                let cause = Cause::Silent(self.patience);
                Err(self.follower.clone().unwrap_or(FabricError::PeerLost { rank, cause }))
            }
            _ => Ok(()),
        }
    }
}

/// Who reaches whom, from what each rank has found about the lower ones.
fn shape_of(hosts: &[usize], reports: &[Report]) -> Shape {
    let mut edges = Vec::new();
    let mut reasons: Vec<&str> = Vec::new();
    for (rank, report) in reports.iter().enumerate() {
        let Report::Reached { cables, unreached } = report else { continue };
        let found = cables.iter().take(rank).enumerate().filter(|(_, cables)| **cables > 0);
        edges.extend(found.map(|(lower, &cables)| (lower, rank, cables)));
        reasons.extend(unreached.iter().map(String::as_str));
    }
    match topology_of(hosts, &edges) {
        Ok(_) => Shape::Known { edges },
        Err(error) => Shape::Impossible { why: format!("{error} ({})", reasons.join("; ")) },
    }
}

/// Whether a rank that asks for a number can have it, beside those that are there with these wishes.
pub(crate) fn admit(wanted: Option<usize>, present: &[Option<usize>], size: usize) -> Result<(), String> {
    match wanted {
        Some(rank) if rank >= size => Err(format!("it wants to be rank {rank} in a group of {size}")),
        Some(rank) if present.contains(&wanted) => Err(format!("there is a rank {rank} already")),
        _ => Ok(()),
    }
}

/// Gives the ranks that asked for a number theirs, and the others what is left, in order of arrival. Returns the rank
/// of each that came. All must have been admitted, and all have come.
pub(crate) fn numbers(wishes: &[Option<usize>]) -> Vec<usize> {
    let mut free = (0..wishes.len()).filter(|rank| !wishes.contains(&Some(*rank)));
    // As many numbers are free as there are ranks without a wish.
    wishes.iter().map(|wish| wish.or_else(|| free.next()).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn reached(rank: usize) -> Report {
        Report::Reached { cables: vec![1; rank], unreached: Vec::new() }
    }

    #[test]
    fn a_group_forms_in_two_phases() {
        let mut conductor = Conductor::new(vec![0, 1, 2], PATIENCE, Duration::ZERO);
        assert!(conductor.on_report(2, reached(2), Duration::ZERO).unwrap().is_none());
        assert!(conductor.on_report(0, reached(0), Duration::ZERO).unwrap().is_none());
        assert_eq!(conductor.awaited().collect::<Vec<_>>(), [1]);
        let word = conductor.on_report(1, reached(1), Duration::ZERO).unwrap();
        assert!(
            matches!(word, Some(Word::Shape(Shape::Known { edges })) if edges == [(0, 1, 1), (0, 2, 1), (1, 2, 1)])
        );
        for rank in [1, 0] {
            assert!(conductor.on_report(rank, Report::Up, Duration::ZERO).unwrap().is_none());
        }
        assert!(matches!(conductor.on_report(2, Report::Up, Duration::ZERO), Ok(Some(Word::Go))));
        assert!(conductor.is_done() && conductor.awaited().next().is_none());
    }

    #[test]
    fn those_who_follow_are_not_blamed_before_the_culprit_had_its_say() {
        let mut conductor = Conductor::new(vec![0, 1], PATIENCE, Duration::ZERO);
        let failed = |follows| Report::Failed { why: "no".to_owned(), follows };
        conductor.on_report(0, failed(true), Duration::ZERO).unwrap();
        conductor.on_tick(Duration::from_millis(10)).unwrap();
        let error = conductor.on_report(1, failed(false), Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, FabricError::JoinFailed { rank: 1, .. }));
        let error = conductor.on_tick(FOLLOWER_PATIENCE).unwrap_err();
        assert!(matches!(error, FabricError::JoinFailed { rank: 0, .. }));
    }

    #[test]
    fn ranks_that_say_nothing_or_nonsense_are_named() {
        let mut conductor = Conductor::new(vec![0, 1], PATIENCE, Duration::ZERO);
        assert!(conductor.on_report(0, Report::Up, Duration::ZERO).is_err());
        conductor.on_report(0, reached(0), Duration::ZERO).unwrap();
        let error = conductor.on_tick(PATIENCE).unwrap_err();
        assert!(matches!(error, FabricError::PeerLost { rank: 1, cause: Cause::Silent(_) }));
    }

    #[test]
    fn numbers_are_those_asked_for_and_the_rest_in_order() {
        assert_eq!(numbers(&[None, Some(0), None, Some(3)]), [1, 0, 2, 3]);
        assert!(admit(Some(1), &[None, Some(1)], 3).unwrap_err().contains("rank 1 already"));
        assert!(admit(Some(3), &[], 3).is_err());
        assert!(admit(None, &[Some(0)], 2).is_ok());
    }
}
