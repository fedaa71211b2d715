//! What a rank brings to each of its connections.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::addresses::Network;
use super::authentication::{Purpose, Terms};
use super::reaching::{self, Way};
use super::stripes::Stripes;
use super::wire::{RankAddress, Welcome};
use crate::error::FabricError;
use crate::link::Transport;
use crate::relay::Counter;
use crate::secret::Secret;
use crate::topology::Topology;

/// What a rank wants its links to be like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes {
    pub(crate) transport: Transport,
    /// The connections that a TCP link has over each cable.
    pub(crate) connections: usize,
    /// Whether connections between machines are encrypted.
    pub(crate) encrypt: bool,
}

/// One rank of a group that forms, as seen from inside.
pub(crate) struct Party {
    pub(crate) secret: Secret,
    session: Vec<u8>,
    pub(crate) rank: usize,
    pub(crate) generation: u32,
    pub(crate) wishes: Wishes,
    /// This rank's addresses.
    own: Vec<Network>,
    ranks: Vec<RankAddress>,
    pub(crate) stripes: Stripes,
    pub(crate) map: Map,
}

impl Party {
    pub(crate) fn new(secret: Secret, welcome: Welcome, wishes: Wishes, own: Vec<Network>) -> Self {
        Self {
            secret,
            session: welcome.session.into_bytes(),
            rank: welcome.rank,
            generation: welcome.generation,
            wishes,
            own,
            ranks: welcome.ranks,
            stripes: Stripes::default(),
            map: Map::default(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Whether connections to another rank must be encrypted.
    pub(crate) fn encrypts(&self, other: usize) -> bool {
        self.wishes.encrypt && !self.same_host(other)
    }

    pub(crate) fn terms(&self) -> Terms<'_> {
        Terms { secret: &self.secret, purpose: Purpose::Link, context: &self.session }
    }

    pub(crate) fn same_host(&self, other: usize) -> bool {
        self.ranks[self.rank].host == self.ranks[other].host
    }

    /// The ranks on this host, this one included.
    pub(crate) fn ranks_here(&self) -> usize {
        (0..self.size()).filter(|&other| self.same_host(other)).count()
    }

    /// A number for the host of each rank.
    pub(crate) fn hosts(&self) -> Vec<usize> {
        host_numbers(&self.ranks)
    }

    /// Where a rank may be, for messages.
    pub(crate) fn addresses(&self, rank: usize) -> &[SocketAddr] {
        &self.ranks[rank].listeners
    }

    /// The ways to another rank, with a connection by the first.
    pub(crate) fn reach(&self, rank: usize, by: Instant) -> Result<(Vec<Way>, TcpStream), String> {
        reaching::reach(&self.own, &self.ranks[rank].listeners, self.same_host(rank), by)
    }
}

/// Numbers ranks' hosts, each by its first rank.
pub(crate) fn host_numbers(ranks: &[RankAddress]) -> Vec<usize> {
    let first = |rank: &RankAddress| ranks.iter().position(|other| other.host == rank.host).unwrap_or_default();
    ranks.iter().map(first).collect()
}

/// Who reaches whom, and who passes bytes on, once it is known.
#[derive(Default)]
pub(crate) struct Map {
    known: Mutex<Option<(Arc<Topology>, Option<Counter>)>>,
    drawn: Condvar,
}

impl Map {
    /// Tells all who wait.
    pub(crate) fn draw(&self, topology: Arc<Topology>, relay: Option<Counter>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((topology, relay));
        self.drawn.notify_all();
    }

    /// Waits until it is known.
    pub(crate) fn wait(&self, by: Instant) -> Result<(Arc<Topology>, Option<Counter>), FabricError> {
        let started = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(known) = &*known {
                return Ok(known.clone());
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what = "the coordinator's word on who reaches whom".to_owned();
                return Err(FabricError::Timeout { what, after: started.elapsed() });
            }
            let waited = self.drawn.wait_timeout(known, left.min(Duration::from_secs(60)));
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
