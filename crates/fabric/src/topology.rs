//! Who can reach whom: plain data, made when a group forms, which the plans of collectives are drawn from.

use std::collections::VecDeque;

use crate::error::FabricError;

/// The ranks of a group, the hosts that they run on, and the cables between them.
///
/// Every pair of ranks has a link. Where no cable joins the two, the link runs through other ranks, and has as many hops
/// as the shortest way from one to the other. Ranks of one host are joined as if by a cable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// By rank.
    hosts: Vec<usize>,
    /// Cables between `a` and `b` at `a * size + b`, 0 where there is none.
    cables: Vec<u32>,
    /// Hops from `a` to `b`, in the same order; 0 from a rank to itself.
    hops: Vec<u32>,
    /// The first rank on the way from `a` to `b`, in the same order.
    next: Vec<usize>,
}

/// A direct connection between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// One end.
    pub a: usize,
    /// The other end.
    pub b: usize,
    /// How many cables there are between the two, at least 1.
    pub cables: u32,
}

impl Edge {
    /// One cable.
    pub fn new(a: usize, b: usize) -> Self {
        Self { a, b, cables: 1 }
    }
}

impl Topology {
    /// Ranks on hosts `hosts` (a number per rank, equal for ranks of one host) with these connections. Ways between
    /// ranks that are not connected are as short as can be, and the same on every rank that computes them.
    ///
    /// # Errors
    /// [`FabricError::Invalid`] when an edge names a rank that does not exist or joins a rank with itself, or when the
    /// group is in parts between which there is no way at all, which it names.
    pub fn from_edges(hosts: &[usize], edges: &[Edge]) -> Result<Self, FabricError> {
        let size = hosts.len();
        let mut cables = vec![0; size * size];
        for &Edge { a, b, cables: count } in edges {
            if a >= size || b >= size || a == b || count == 0 {
                return Err(FabricError::Invalid(format!("{count} cables from rank {a} to rank {b} of {size}")));
            }
            cables[a * size + b] = count;
            cables[b * size + a] = count;
        }
        let mut topology =
            Self { hosts: hosts.to_vec(), cables, hops: vec![0; size * size], next: vec![0; size * size] };
        for rank in 0..size {
            topology.find_ways_to(rank)?;
        }
        Ok(topology)
    }

    /// Every rank on a host of its own, with a cable between any two.
    pub fn full_mesh(size: usize) -> Self {
        Self::full_mesh_on((0..size).collect())
    }

    /// All ranks on one host.
    pub fn one_host(size: usize) -> Self {
        Self::full_mesh_on(vec![0; size])
    }

    /// Hosts of one rank each in a row: each has a cable to the one before and the one after.
    pub fn chain(size: usize) -> Self {
        Self::hosts(&vec![1; size], &row(size))
    }

    /// As [`Topology::chain`], with a cable from the last to the first.
    pub fn ring(size: usize) -> Self {
        let mut cables = row(size);
        if size > 2 {
            cables.push((size - 1, 0));
        }
        Self::hosts(&vec![1; size], &cables)
    }

    /// Hosts with `ranks[host]` ranks each, numbered host by host, and cables between the hosts at both ends of each of
    /// `cables`. All ranks of a host use its cables. Hosts that no cable leads to make no group: they are joined with
    /// the host before them.
    pub fn hosts(ranks: &[usize], cables: &[(usize, usize)]) -> Self {
        let hosts: Vec<usize> = ranks.iter().enumerate().flat_map(|(host, &count)| vec![host; count]).collect();
        let joined = |a: usize, b: usize| a == b || cables.iter().any(|&pair| pair == (a, b) || pair == (b, a));
        let pairs = (0..hosts.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let mut edges: Vec<Edge> =
            pairs.filter(|&(a, b)| joined(hosts[a], hosts[b])).map(|(a, b)| Edge::new(a, b)).collect();
        loop {
            match Self::from_edges(&hosts, &edges) {
                Ok(topology) => return topology,
                // All edges are between ranks that exist, so that only a missing way can have failed.
                Err(_) => edges.extend((1..hosts.len()).map(|rank| Edge::new(rank - 1, rank))),
            }
        }
    }

    /// Ranks on these hosts (a number per rank, equal for ranks of one host), any two of which are connected.
    pub fn full_mesh_on(hosts: Vec<usize>) -> Self {
        let size = hosts.len();
        let distinct = |index: usize| u32::from(index / size != index % size);
        let cables: Vec<u32> = (0..size * size).map(distinct).collect();
        Self { hosts, hops: cables.clone(), cables, next: (0..size * size).map(|index| index % size).collect() }
    }

    /// Goes from `target` outwards, always to the lowest rank first.
    fn find_ways_to(&mut self, target: usize) -> Result<(), FabricError> {
        let size = self.size();
        let mut reached = vec![false; size];
        reached[target] = true;
        self.next[target * size + target] = target;
        let mut outermost = VecDeque::from([target]);
        while let Some(from) = outermost.pop_front() {
            for (rank, reached) in reached.iter_mut().enumerate() {
                if !*reached && self.cables[from * size + rank] > 0 {
                    *reached = true;
                    self.hops[rank * size + target] = self.hops[from * size + target] + 1;
                    self.next[rank * size + target] = from;
                    outermost.push_back(rank);
                }
            }
        }
        match reached.iter().position(|reached| !reached) {
            Some(_) => Err(self.apart()),
            None => Ok(()),
        }
    }

    /// Says which parts of the group have no way to each other.
    fn apart(&self) -> FabricError {
        let size = self.size();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut seen = vec![false; size];
        while let Some(first) = seen.iter().position(|seen| !seen) {
            seen[first] = true;
            let mut part = vec![first];
            let mut looked_at = 0;
            while let Some(&from) = part.get(looked_at) {
                looked_at += 1;
                let joined = (0..size).filter(|&rank| self.cables[from * size + rank] > 0);
                part.extend(joined.filter(|&rank| !std::mem::replace(&mut seen[rank], true)));
            }
            part.sort_unstable();
            parts.push(part);
        }
        let parts: Vec<String> = parts.iter().map(|part| format!("{part:?}")).collect();
        FabricError::Invalid(format!(
            "ranks {} do not reach each other; check cables, addresses and firewalls",
            parts.join(" and ")
        ))
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// A number for the host of a rank.
    pub fn host(&self, rank: usize) -> usize {
        self.hosts[rank]
    }

    /// The ranks on a rank's host, that rank included.
    pub fn neighbours(&self, rank: usize) -> usize {
        self.hosts.iter().filter(|&&host| host == self.hosts[rank]).count()
    }

    /// How many cables a message from `a` to `b` passes: 0 to the rank itself, 1 to one that is connected.
    pub fn hops(&self, a: usize, b: usize) -> usize {
        self.hops[a * self.size() + b] as usize
    }

    /// How many cables join `a` and `b`; 1 for two ranks of one host.
    pub fn cables(&self, a: usize, b: usize) -> usize {
        self.cables[a * self.size() + b] as usize
    }

    /// Whether a message from `a` to `b` passes no other rank.
    pub fn is_direct(&self, a: usize, b: usize) -> bool {
        self.hops(a, b) <= 1
    }

    /// The first rank that a message from `from` to `to` comes to, which is `to` itself where the two are connected.
    pub fn next_hop(&self, from: usize, to: usize) -> usize {
        self.next[from * self.size() + to]
    }

    /// As [`Topology::next_hop`], when only some of the ranks are left; `None` where there is no way any more.
    pub(crate) fn next_hop_among(&self, from: usize, to: usize, is_left: impl Fn(usize) -> bool) -> Option<usize> {
        let mut reached = vec![false; self.size()];
        reached[to] = true;
        let mut outermost = VecDeque::from([to]);
        while let Some(rank) = outermost.pop_front() {
            if self.cables(rank, from) > 0 {
                return Some(rank);
            }
            for (next, seen) in reached.iter_mut().enumerate() {
                if !*seen && self.cables(rank, next) > 0 && is_left(next) {
                    *seen = true;
                    outermost.push_back(next);
                }
            }
        }
        None
    }

    /// Whether all ranks are connected with all others.
    pub fn is_full_mesh(&self) -> bool {
        self.hops.iter().all(|&hops| hops <= 1)
    }
}

/// Each host with the next.
fn row(hosts: usize) -> Vec<(usize, usize)> {
    (1..hosts).map(|host| (host - 1, host)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any connected topology of a number of ranks: a random tree and some more cables, ranks on random hosts.
    pub(crate) fn connected(size: impl Strategy<Value = usize>) -> impl Strategy<Value = Topology> {
        (size, proptest::collection::vec(any::<u32>(), 40)).prop_map(|(size, dice)| {
            let mut dice = dice.into_iter().cycle();
            let mut roll = move |sides: usize| dice.next().map_or(0, |number| number as usize % sides.max(1));
            let mut edges: Vec<Edge> = (1..size).map(|rank| Edge::new(roll(rank), rank)).collect();
            for _ in 0..roll(2 * size) {
                let (a, b) = (roll(size), roll(size));
                if a != b {
                    edges.push(Edge::new(a, b));
                }
            }
            let hosts: Vec<usize> = (0..size).map(|_| roll(size)).collect();
            Topology::from_edges(&hosts, &edges).unwrap()
        })
    }

    proptest! {
        #[test]
        fn ways_are_short_and_lead_there(topology in connected(1usize..9)) {
            let size = topology.size();
            for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
                let hops = topology.hops(from, to);
                prop_assert_eq!(hops, topology.hops(to, from));
                prop_assert_eq!(hops == 1, topology.cables(from, to) > 0);
                prop_assert_eq!(hops == 0, from == to);
                let next = topology.next_hop(from, to);
                prop_assert!(from == to || topology.is_direct(from, next) && topology.hops(next, to) == hops - 1);
                for other in 0..size {
                    prop_assert!(hops <= topology.hops(from, other) + topology.hops(other, to));
                }
            }
        }
    }

    #[test]
    fn shapes_are_what_they_are_called() {
        let chain = Topology::chain(4);
        assert_eq!((chain.hops(0, 3), chain.next_hop(0, 3), chain.cables(1, 2), chain.cables(0, 2)), (3, 1, 1, 0));
        let ring = Topology::ring(5);
        assert_eq!((ring.hops(0, 3), ring.next_hop(0, 3), ring.hops(0, 2)), (2, 4, 2));
        assert!(Topology::full_mesh(4).is_full_mesh() && !ring.is_full_mesh());
        assert!(Topology::one_host(3).is_full_mesh() && Topology::one_host(3).host(2) == 0);
        let hosts = Topology::hosts(&[2, 1, 2], &[(0, 1), (1, 2)]);
        assert_eq!(
            (hosts.size(), hosts.host(2), hosts.hops(0, 1), hosts.hops(0, 2), hosts.hops(1, 4)),
            (5, 1, 1, 1, 2)
        );
        assert_eq!(ring.next_hop_among(2, 0, |rank| rank != 1), Some(3));
        assert_eq!(ring.next_hop_among(2, 0, |_| true), Some(1));
        assert_eq!(chain.next_hop_among(3, 0, |rank| rank != 1), None);
        for size in 0..3 {
            assert_eq!(Topology::chain(size), Topology::ring(size));
        }
        let error = Topology::from_edges(&[0, 1, 2, 3], &[Edge::new(3, 1)]).unwrap_err();
        assert!(error.to_string().contains("ranks [0] and [1, 3] and [2]"), "{error}");
        assert!(Topology::from_edges(&[0, 1], &[Edge::new(0, 2)]).is_err());
    }
}
