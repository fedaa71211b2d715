//! Who of the group still lives, and who is to blame when the group cannot go on.
//!
//! Each pair of ranks keeps a connection beside its data, the lifeline. One thread per fabric, the monitor, says on it
//! every now and then that this rank lives and for whom it waits, hears the same from the others, and tells everyone
//! what it finds. A [`Tracker`] decides, without clock, socket or thread, so that it runs under simulation, too.
//!
//! - A lifeline that ends without a goodbye is the end of the rank behind it.
//! - A rank that is silent for the deadline is lost. When several fall silent at once, the nearest is to blame, as others
//!   may only be silent because their signs of life pass through it. Ranks that blame different ones vote.
//! - What one rank has found goes to all, so that all return the same error.

mod frame;
mod health;
mod hostile;
mod monitor;
mod rank_set;
mod tracker;
mod watch;

use std::time::Duration;

use crate::error::{Cause, FabricError, View};

pub(crate) use frame::Codec;
pub(crate) use health::{Health, Note};
pub use hostile::fuzz;
pub(crate) use monitor::Monitor;
use rank_set::RankSet;
pub(crate) use tracker::{Standing, Timing, Tracker};
#[cfg(test)]
pub(crate) use watch::{Watch, Wire};

/// The deadline of a rank that is given none.
pub(crate) const LIVENESS_DEADLINE: Duration = Duration::from_secs(5);

/// Why a group cannot go on, as all of its ranks learn it.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// A rank is gone.
    Lost { rank: usize, cause: Cause },
    /// Rank `seen_by` got a message from `rank` that was not the one which it expected.
    Mismatch { rank: usize, seen_by: usize, ours: View, theirs: View },
}

impl Trouble {
    /// How it looks to a rank.
    fn error_at(self, rank: usize) -> FabricError {
        match self {
            Self::Lost { rank: lost, cause } if lost == rank => FabricError::Excluded { rank, cause },
            Self::Lost { rank, cause } => FabricError::PeerLost { rank, cause },
            Self::Mismatch { rank, seen_by, ours, theirs } => FabricError::Mismatch { rank, seen_by, ours, theirs },
        }
    }

    /// What an error means to the others; nothing if it is about the rank itself.
    fn of_error(error: &FabricError) -> Option<Self> {
        match error.clone() {
            FabricError::PeerLost { rank, cause } => Some(Self::Lost { rank, cause }),
            FabricError::Mismatch { rank, seen_by, ours, theirs } => {
                Some(Self::Mismatch { rank, seen_by, ours, theirs })
            }
            _ => None,
        }
    }
}

/// What ranks tell each other.
#[derive(Debug, Clone)]
pub(crate) enum Statement {
    /// A sign of life; the next one follows after `interval`. `hears` are those whose signs reach this rank.
    Alive { waiting_for: Option<usize>, interval: Duration, hears: RankSet },
    /// `accuser` has not heard from `culprit`, `hops` cables away, which is a reason for others to look as well. If it
    /// has accused one that is farther away before, it has changed its mind. It knew of so many verdicts: later ones may
    /// explain the silence, so that it would have to accuse anew.
    Accusation { accuser: usize, culprit: usize, hops: usize, verdicts: usize, cause: Cause },
    /// This is certain.
    Verdict(Trouble),
    /// The last thing said before a lifeline ends.
    Goodbye,
}

impl Statement {
    /// The ranks that it names.
    fn ranks(&self) -> [Option<usize>; 2] {
        match self {
            Self::Alive { waiting_for, .. } => [*waiting_for, None],
            Self::Accusation { accuser, culprit, .. } => [Some(*accuser), Some(*culprit)],
            Self::Verdict(Trouble::Lost { rank, .. }) => [Some(*rank), None],
            Self::Verdict(Trouble::Mismatch { rank, seen_by, .. }) => [Some(*rank), Some(*seen_by)],
            Self::Goodbye => [None, None],
        }
    }
}
