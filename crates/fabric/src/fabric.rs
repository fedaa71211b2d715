//! All links of one rank.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::Channel;
use crate::error::FabricError;
use crate::link::{Cable, Link, LinkCounters, Transport};
use crate::liveness::{Health, Monitor, Timing};
use crate::memory::Scratch;
use crate::peer::{Peer, Pieces};
use crate::plan::{Plan, Tuning};
use crate::plans::Plans;
use crate::relay::Relay;
use crate::rendezvous::Kept;
use crate::topology::Topology;
use crate::wait::Patience;

/// One rank's links, by rank.
pub(crate) type Links = Vec<Option<Box<dyn Link>>>;
/// One rank's connections to others which only show that these are there, by rank.
pub(crate) type Lifelines = Vec<Option<Channel>>;

/// The links of one rank to all others of its group, and the collectives over them.
///
/// All ranks of a team must call the same operations on it in the same order with fitting sizes. After an error the
/// fabric is broken: messages may be cut off in the middle, so that every later call returns the same error. The group
/// then has to be formed anew.
pub struct Fabric {
    pub(crate) rank: usize,
    pub(crate) generation: u32,
    /// Before the links, so that the others have heard the goodbye when they find their links broken.
    _monitor: Option<Monitor>,
    /// By rank; this rank's own place is empty.
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) topology: Topology,
    pub(crate) tuning: Tuning,
    /// After the links, whose other ends may be on the way of those who still need this rank to pass things on.
    relays: Relays,
    /// For the case that the group has to form anew.
    pub(crate) kept: Option<Box<Kept>>,
    pub(crate) patience: Patience,
    pub(crate) health: Arc<Health>,
    pub(crate) broken: Option<FabricError>,
    /// Plans made before.
    pub(crate) plans: Plans,
    /// The plan of a single message, made anew in the same memory each time.
    pub(crate) single: Option<Arc<Plan>>,
    /// What collectives need besides the caller's buffer.
    pub(crate) scratch: Scratch,
    pub(crate) pieces: Pieces,
    /// Whether there are links on which this rank reads ahead.
    pub(crate) reads_ahead: bool,
    /// Operations that have begun and are not done, in order.
    pub(crate) begun: VecDeque<u64>,
}

/// What passes through this rank, and ends with it: once nobody needs it any more, or at once when the group is broken.
struct Relays {
    relays: Vec<Relay>,
    health: Arc<Health>,
}

impl Drop for Relays {
    fn drop(&mut self) {
        if self.health.is_troubled() {
            self.relays.drain(..).for_each(Relay::close_at_once);
        }
    }
}

impl Fabric {
    /// The fabric of a group of one rank, which has no links. Its collectives return at once.
    pub fn solo() -> Self {
        let health = Arc::new(Health::new(0, 1));
        Self::with_health(0, 1, vec![None], health, None, Topology::one_host(1))
    }

    /// A fabric of links that exist already; `links` and `lifelines` are by rank, with nothing at the place of `rank`.
    /// A rank that is silent for `liveness_deadline` is lost.
    ///
    /// # Errors
    /// When the system has no thread left to keep the lifelines.
    pub(crate) fn from_links(
        rank: usize,
        generation: u32,
        links: Links,
        lifelines: Lifelines,
        topology: Topology,
        liveness_deadline: Duration,
    ) -> Result<Self, FabricError> {
        let health = Arc::new(Health::new(rank, links.len()));
        let hops: Vec<usize> = (0..links.len()).map(|other| topology.hops(rank, other)).collect();
        let monitor = Monitor::start(&health, generation, lifelines, &hops, Timing::new(liveness_deadline))?;
        Ok(Self::with_health(rank, generation, links, health, Some(monitor), topology))
    }

    /// The fabric of one rank over links of the caller's own making; `links` is by rank, with nothing at the place of
    /// `rank`. Nobody watches over the other ranks: a link that fails is all that shows the loss of one.
    ///
    /// # Errors
    /// [`FabricError::Invalid`] when there is not one link to each other rank of the topology.
    pub fn over_links(
        rank: usize,
        generation: u32,
        links: Vec<Option<Box<dyn Link>>>,
        topology: Topology,
    ) -> Result<Self, FabricError> {
        let fits = |(other, link): (usize, &Option<Box<dyn Link>>)| link.is_some() != (other == rank);
        if links.len() != topology.size() || rank >= links.len() || !links.iter().enumerate().all(fits) {
            let (count, size) = (links.iter().flatten().count(), topology.size());
            return Err(FabricError::Invalid(format!(
                "rank {rank} of {size} has other links than one to each other rank: {count}"
            )));
        }
        let health = Arc::new(Health::new(rank, links.len()));
        Ok(Self::with_health(rank, generation, links, health, None, topology))
    }

    pub(crate) fn with_health(
        rank: usize,
        generation: u32,
        links: Links,
        health: Arc<Health>,
        monitor: Option<Monitor>,
        topology: Topology,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let links = links.into_iter().enumerate();
        let peers = links.map(|(other, link)| link.map(|link| Peer::new(rank, other, generation, link))).collect();
        let patience = Patience::new(topology.neighbours(rank) > cores);
        let relays = Relays { relays: Vec::new(), health: Arc::clone(&health) };
        Self {
            rank,
            generation,
            _monitor: monitor,
            peers,
            topology,
            tuning: Tuning::default(),
            relays,
            kept: None,
            patience,
            health,
            broken: None,
            plans: Plans::default(),
            single: None,
            scratch: Scratch::default(),
            pieces: Pieces::new(),
            reads_ahead: false,
            begun: VecDeque::new(),
        }
    }

    /// Has the fabric keep what passes bytes on through this rank.
    pub(crate) fn keep(&mut self, relays: Vec<Relay>) {
        self.relays.relays.extend(relays);
    }

    /// Ends the data links. The lifelines stay.
    pub(crate) fn let_go(&mut self) {
        self.peers.iter_mut().for_each(|peer| *peer = None);
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// Counts the formings of the group.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What the link to another rank is made of; `None` for this rank itself and for ranks that do not exist.
    pub fn transport(&self, rank: usize) -> Option<Transport> {
        self.peers.get(rank)?.as_ref().map(Peer::transport)
    }

    /// Who reaches whom in the group.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What the link to another rank has got over by itself; `None` as for [`Fabric::transport`].
    pub fn counters(&self, rank: usize) -> Option<LinkCounters> {
        self.peers.get(rank)?.as_ref().map(Peer::counters)
    }

    /// Whether nobody on the way can read or change what passes over the link to another rank; `None` as for
    /// [`Fabric::transport`].
    pub fn is_encrypted(&self, rank: usize) -> Option<bool> {
        self.peers.get(rank)?.as_ref().map(Peer::is_encrypted)
    }

    /// The cables under the link to another rank, as far as they have addresses.
    pub fn cables(&self, rank: usize) -> Vec<Cable> {
        self.peers.get(rank).and_then(Option::as_ref).map(Peer::cables).unwrap_or_default()
    }

    /// The time that this rank has spent waiting for others since [`Fabric::take_waited`]. Waits that end while the rank
    /// first looks do not count.
    pub fn waited(&self) -> Duration {
        self.patience.waited()
    }

    /// As [`Fabric::waited`], and starts counting anew.
    pub fn take_waited(&mut self) -> Duration {
        self.patience.take_waited()
    }

    /// A wait in which nothing moves for this long fails. 30 seconds unless set.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.patience.deadline = deadline;
    }

    /// How long a wait keeps looking before it sleeps: 50 microseconds unless set. More is faster where every thread of
    /// every rank has a core of its own; zero lets others run at once.
    pub fn set_spin(&mut self, spin: Duration) {
        self.patience.set_spin(spin);
    }

    /// Whether the threads of the ranks on this host have to share cores, so that a waiting rank should offer its core
    /// to others. Assumed, unless set, when there are more ranks on this host than cores.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.patience.set_crowded(crowded);
    }

    /// The sizes at which collectives are done in another way.
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// Sets them. They must be the same on all ranks, as ranks that do a collective in different ways do not understand
    /// each other.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.plans = Plans::default();
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("rank", &self.rank)
            .field("size", &self.size())
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
