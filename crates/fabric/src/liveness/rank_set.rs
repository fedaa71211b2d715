//! A set of ranks that fits into a frame.

use std::fmt;

use crate::rendezvous::MAX_RANKS;

/// Bytes of a set: a bit for each rank that a group can have.
pub(super) const SET_BYTES: usize = MAX_RANKS / 8;

/// Some ranks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RankSet(pub(super) [u8; SET_BYTES]);

impl RankSet {
    /// Adds a rank. Numbers that no rank has are left out.
    pub(super) fn insert(&mut self, rank: usize) {
        if let Some(byte) = self.0.get_mut(rank / 8) {
            *byte |= 1 << (rank % 8);
        }
    }

    pub(super) fn contains(&self, rank: usize) -> bool {
        self.0.get(rank / 8).is_some_and(|byte| byte & 1 << (rank % 8) != 0)
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..MAX_RANKS).filter(|&rank| self.contains(rank))).finish()
    }
}
