//! A team on a topology, as seen by one member.

use crate::topology::Topology;

/// Members are named by their position in the team, except where it says rank.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) topology: &'a Topology,
    /// The ranks of the team, in order.
    pub(crate) members: &'a [usize],
    /// The member that sees.
    pub(crate) index: usize,
}

impl Seen<'_> {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn rank(&self, member: usize) -> usize {
        self.members[member]
    }

    pub(crate) fn hops(&self, a: usize, b: usize) -> usize {
        self.topology.hops(self.members[a], self.members[b])
    }

    fn host(&self, member: usize) -> usize {
        self.topology.host(self.members[member])
    }

    /// All members but this one. Each member begins with the one after it, so that not all of them write to the same
    /// one at first.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (index, len) = (self.index, self.len());
        (index + 1..len).chain(0..index)
    }

    /// Whether all members are connected with each other.
    pub(crate) fn is_full_mesh(&self) -> bool {
        (0..self.len()).all(|b| (0..b).all(|a| self.hops(a, b) <= 1))
    }

    /// Whether several members share a host while others are elsewhere.
    fn has_crowded_hosts(&self) -> bool {
        let shared = (0..self.len()).any(|b| (0..b).any(|a| self.host(a) == self.host(b)));
        shared && (1..self.len()).any(|member| self.host(member) != self.host(0))
    }

    /// Whether a chain in the team's order makes good use of the cables: each member is connected with the next, no host
    /// is come to twice, and there is a point in it, as not all members have cables of their own to all others.
    pub(crate) fn suits_chain(&self) -> bool {
        let direct = (1..self.len()).all(|member| self.hops(member - 1, member) <= 1);
        let once = (1..self.len()).all(|member| {
            self.host(member) == self.host(member - 1)
                || (0..member).all(|before| self.host(before) != self.host(member))
        });
        self.len() > 2 && direct && once && (!self.is_full_mesh() || self.has_crowded_hosts())
    }

    /// The member that passes what comes from `root` on to `member`: the nearest one on a shortest way. `None` for the
    /// root itself.
    pub(crate) fn parent(&self, root: usize, member: usize) -> Option<usize> {
        if member == root {
            return None;
        }
        let way = self.hops(root, member);
        let on_the_way = |&other: &usize| other != member && self.hops(root, other) + self.hops(other, member) == way;
        (0..self.len()).filter(on_the_way).min_by_key(|&other| (self.hops(other, member), other)).or(Some(root))
    }
}
