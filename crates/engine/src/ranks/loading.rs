//! How far the ranks of a group are in loading their weights: what a rank tells of it, and what the front makes of that.

use std::time::{Duration, Instant};

/// A rank says no more than once in this time how far it is, and nothing if it is done sooner.
const PACE: Duration = Duration::from_millis(200);

/// Bytes of weights that are loaded and that there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loading {
    /// Loaded so far, at most `total`.
    pub done: u64,
    /// Of all ranks that have said so.
    pub total: u64,
}

impl Loading {
    /// What a rank tells, which may be anything.
    pub(crate) fn told(done: u64, total: u64) -> Self {
        Self { done: done.min(total), total }
    }

    /// The same rank once it is ready.
    pub(crate) fn completed(self) -> Self {
        Self { done: self.total, ..self }
    }

    /// Of all ranks together.
    pub(crate) fn sum(ranks: &[Self]) -> Self {
        ranks.iter().fold(Self::default(), |sum, rank| Self {
            done: sum.done.saturating_add(rank.done),
            total: sum.total.saturating_add(rank.total),
        })
    }
}

/// Says when a rank is to tell the front how far it is.
pub(crate) struct Pace {
    told: Instant,
}

impl Pace {
    /// Of a rank that begins to load.
    pub(crate) fn new(now: Instant) -> Self {
        Self { told: now }
    }

    /// Whether it is time again; if so, it is taken to be told.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.told) >= PACE;
        if due {
            self.told = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_tells_little_however_much_there_is() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let told: Vec<u64> =
            (0..=1000).filter(|&millisecond| pace.is_due(start + Duration::from_millis(millisecond))).collect();
        assert_eq!(told, [200, 400, 600, 800, 1000]);
        // What takes long between two matrices is told once, not made up for.
        assert!(pace.is_due(start + Duration::from_secs(9)));
        assert!(!pace.is_due(start + Duration::from_secs(9)));
    }

    #[test]
    fn what_ranks_tell_is_kept_within_bounds() {
        let ranks = [Loading::told(7, 5), Loading::told(1, u64::MAX), Loading::told(3, 4).completed()];
        assert_eq!(ranks[0], Loading { done: 5, total: 5 });
        assert_eq!(Loading::sum(&ranks), Loading { done: 10, total: u64::MAX });
        assert_eq!(Loading::sum(&[]), Loading::default());
    }
}
