//! The ranks that take part in a collective.

use std::ops::Range;

use crate::error::FabricError;

/// An ordered set of ranks, as seen by one of them. Collectives number their participants by position in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    members: Vec<usize>,
    index: usize,
    /// The highest rank among the members.
    rank_max: usize,
}

impl Team {
    /// The team of `members`, in this order, as seen by `rank`.
    ///
    /// # Errors
    /// When `rank` is not among the members, or one of them is named twice.
    pub fn new(members: Vec<usize>, rank: usize) -> Result<Self, FabricError> {
        let index = members
            .iter()
            .position(|&member| member == rank)
            .ok_or_else(|| FabricError::Invalid(format!("rank {rank} is not in its own team {members:?}")))?;
        let mut sorted = members.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(FabricError::Invalid(format!("team {members:?} names a rank twice")));
        }
        let rank_max = sorted.last().copied().unwrap_or(rank);
        Ok(Self { members, index, rank_max })
    }

    /// The team of consecutive `ranks`, as seen by `rank`.
    ///
    /// # Errors
    /// When `rank` is not among them.
    pub fn of_range(ranks: Range<usize>, rank: usize) -> Result<Self, FabricError> {
        Self::new(ranks.collect(), rank)
    }

    /// The ranks, in the team's order.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// The position of the rank that holds this value.
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn rank_max(&self) -> usize {
        self.rank_max
    }

    /// The number of members, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.members.len()
    }
}
