//! How a rank comes by its links once it knows who belongs to the group.
//!
//! Each rank dials all lower ones, at all of their addresses, and lets all higher ones in at the same time. What it finds
//! it reports to the coordinator, which answers with the shape of the whole group, the same for all. Pairs that do not
//! reach each other then connect through those in between. When a rank has its links to all others, it reports that,
//! and when all have, the coordinator lets them go.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::frame::{FrameReader, write_json};
use super::pairing::{self, Bond, Caller, Line};
use super::party::Party;
use super::passage;
use super::reception::Reception;
use super::wire::{Go, Report, Shape};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::fabric::{Lifelines, Links};
use crate::relay::Relay;
use crate::timed::end_of;
use crate::topology::{Edge, Topology};

/// How often a rank that waits for others looks at the clock.
const GLANCE: Duration = Duration::from_millis(50);

/// What a rank has got when its group has formed.
pub(crate) struct Formed {
    /// By rank.
    pub(crate) links: Links,
    /// By rank.
    pub(crate) lifelines: Lifelines,
    pub(crate) topology: Topology,
    /// Passes on what others have to say to each other, where some of them need it.
    pub(crate) relay: Option<Relay>,
}

/// Forms the links of the group. The coordinator hears of it when that fails.
pub(crate) fn form(
    party: Party,
    coordinator: &Channel,
    listeners: Vec<TcpListener>,
    by: Instant,
) -> Result<Formed, FabricError> {
    let formed = Forming::start(Arc::new(party), coordinator, listeners, by).and_then(Forming::run);
    if let Err(error) = &formed {
        let report = Report::Failed { why: error.to_string(), follows: follows_another(error) };
        // A coordinator that cannot be told has other reasons to give up.
        let _ = write_json(coordinator, &report, by);
    }
    formed
}

/// Whether an error is what a rank sees when another one has given up.
fn follows_another(error: &FabricError) -> bool {
    match error {
        FabricError::PeerLost { cause, .. } | FabricError::Handshake { cause, .. } => {
            matches!(cause, Cause::Closed | Cause::Io(_))
        }
        FabricError::Io { .. } => true,
        _ => false,
    }
}

/// The shape of a group whose pairs of ranks have these numbers of cables.
pub(crate) fn topology_of(hosts: &[usize], edges: &[(usize, usize, u32)]) -> Result<Topology, FabricError> {
    let edges: Vec<Edge> = edges.iter().map(|&(a, b, cables)| Edge { a, b, cables }).collect();
    Topology::from_edges(hosts, &edges)
}

/// What the threads of a rank that forms its links have to tell.
enum Event {
    /// A lower rank has been dialled.
    Dialled(usize, Result<Found, FabricError>),
    /// Somebody has called.
    Called(Caller),
}

/// What came of dialling.
enum Found {
    Bond {
        bond: Bond,
        cables: usize,
    },
    /// It cannot be reached directly, and why.
    Unreached(String),
}

/// What the coordinator has heard from this rank.
#[derive(PartialEq, Eq)]
enum Reported {
    Nothing,
    Reached,
    Up,
}

struct Forming<'a> {
    party: Arc<Party>,
    coordinator: &'a Channel,
    words: FrameReader,
    reception: Reception<Event>,
    started: Instant,
    by: Instant,
    bonds: Vec<Option<Bond>>,
    /// By lower rank.
    cables: Vec<u32>,
    unreached: Vec<String>,
    /// The lower ranks that are still being dialled.
    dialling: usize,
    reported: Reported,
    shape: Option<Arc<Topology>>,
    relay: Option<Relay>,
}

impl<'a> Forming<'a> {
    fn start(
        party: Arc<Party>,
        coordinator: &'a Channel,
        listeners: Vec<TcpListener>,
        by: Instant,
    ) -> Result<Self, FabricError> {
        let greeter = Arc::clone(&party);
        let greet = move |stream, until: Instant| pairing::answer(&greeter, stream, until).map(Event::Called);
        let reception = Reception::new(listeners, greet)?;
        let mut forming = Self {
            coordinator,
            words: FrameReader::default(),
            reception,
            started: Instant::now(),
            by,
            bonds: (0..party.size()).map(|_| None).collect(),
            cables: vec![0; party.rank],
            unreached: Vec::new(),
            dialling: 0,
            reported: Reported::Nothing,
            shape: None,
            relay: None,
            party,
        };
        for rank in 0..forming.party.rank {
            forming.dial(rank, move |party| dial_directly(party, rank, by));
        }
        Ok(forming)
    }

    /// Works until the coordinator lets all go. A rank that has its own links still serves those that need it to get
    /// theirs.
    fn run(mut self) -> Result<Formed, FabricError> {
        let lost = |cause| FabricError::CoordinatorLost { cause };
        loop {
            self.report()?;
            if Instant::now() >= self.by {
                return Err(self.too_late());
            }
            // The coordinator goes away when another rank fails.
            while let Some(words) = self.words.read(self.coordinator, Instant::now()).map_err(lost)? {
                match &self.shape {
                    None => self.draw_map(&understand(&words)?)?,
                    Some(shape) => {
                        let Go = understand(&words)?;
                        let shape = Arc::clone(shape);
                        return self.finish(&shape);
                    }
                }
            }
            let until = self.by.min(end_of(GLANCE));
            let Some(visit) = self.reception.next(until, Some(self.coordinator.as_fd()))? else { continue };
            match visit.outcome {
                Ok(event) => self.take(event)?,
                // What a stranger does is no concern of the group; what a rank lacks shows at the deadline or by its
                // own report. Those who try several ways at once leave all but the first without a word.
                Err(error @ FabricError::Handshake { cause: Cause::Closed, .. }) => {
                    tracing::debug!("a connection from {} was not needed: {error}", visit.from);
                }
                Err(error) => tracing::warn!("dropped a connection from {}: {error}", visit.from),
            }
        }
    }

    /// Tells the coordinator how far this rank has come, once it has come that far.
    fn report(&mut self) -> Result<(), FabricError> {
        let report = match self.reported {
            Reported::Nothing if self.dialling == 0 => {
                self.reported = Reported::Reached;
                Report::Reached { cables: self.cables.clone(), unreached: self.unreached.clone() }
            }
            Reported::Reached if self.shape.is_some() && self.missing().next().is_none() => {
                self.reported = Reported::Up;
                Report::Up
            }
            _ => return Ok(()),
        };
        write_json(self.coordinator, &report, self.by).map_err(|cause| FabricError::CoordinatorLost { cause })
    }

    fn too_late(&self) -> FabricError {
        let after = self.started.elapsed();
        let missing: Vec<usize> = self.missing().collect();
        let what = match missing[..] {
            [] => "the end of the other ranks' connecting".to_owned(),
            _ => format!("the connection of ranks {missing:?} with rank {}", self.party.rank),
        };
        FabricError::Timeout { what, after }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let bonds = self.bonds.iter().enumerate();
        bonds.filter(|(rank, bond)| *rank != self.party.rank && bond.is_none()).map(|(rank, _)| rank)
    }

    /// Dials a rank in a thread of its own.
    fn dial(&mut self, rank: usize, how: impl FnOnce(&Party) -> Result<Found, FabricError> + Send + 'static) {
        let party = Arc::clone(&self.party);
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let whom = party.addresses(rank).first().copied().unwrap_or(nowhere);
        self.dialling += 1;
        self.reception.employ(whom, move || Ok(Event::Dialled(rank, how(&party))));
    }

    fn take(&mut self, event: Event) -> Result<(), FabricError> {
        let (rank, bond) = match event {
            Event::Called(Caller::Served) => return Ok(()),
            Event::Called(Caller::Bonded(rank, bond)) => (rank, bond),
            Event::Dialled(rank, outcome) => {
                self.dialling -= 1;
                match outcome? {
                    Found::Unreached(why) => {
                        tracing::debug!("rank {} does not reach rank {rank} directly: {why}", self.party.rank);
                        self.unreached.push(format!("from rank {} to rank {rank}: {why}", self.party.rank));
                        return Ok(());
                    }
                    Found::Bond { bond, cables } => {
                        if self.shape.is_none() {
                            self.cables[rank] = u32::try_from(cables).unwrap_or(u32::MAX);
                        }
                        (rank, bond)
                    }
                }
            }
        };
        if self.bonds[rank].replace(bond).is_some() {
            return Err(FabricError::Invalid(format!("rank {rank} connected twice")));
        }
        Ok(())
    }

    /// Takes in the shape of the group, and dials those that can only be reached through others.
    fn draw_map(&mut self, shape: &Shape) -> Result<(), FabricError> {
        let edges = match shape {
            Shape::Known { edges } => edges,
            Shape::Impossible { why } => return Err(FabricError::Invalid(why.clone())),
        };
        let topology = Arc::new(topology_of(&self.party.hosts(), edges)?);
        if !topology.is_full_mesh() {
            self.relay = Some(Relay::start()?);
        }
        self.party.map.draw(Arc::clone(&topology), self.relay.as_ref().map(|relay| relay.counter().clone()));
        let by = self.by;
        let own = self.party.rank;
        for rank in (0..own).filter(|&rank| topology.hops(own, rank) > 1) {
            let topology = Arc::clone(&topology);
            self.dial(rank, move |party| dial_through_others(party, &topology, rank, by));
        }
        self.shape = Some(topology);
        Ok(())
    }

    fn finish(self, shape: &Topology) -> Result<Formed, FabricError> {
        if self.reported != Reported::Up {
            let cause = Cause::corrupt("it let this rank go before its links were up");
            return Err(FabricError::CoordinatorLost { cause });
        }
        let bonds = self.bonds.into_iter();
        let (links, lifelines) = bonds.map(|bond| bond.map(|it| (it.link, it.lifeline)).unzip()).unzip();
        Ok(Formed { links, lifelines, topology: shape.clone(), relay: self.relay })
    }
}

/// Reads what the coordinator says.
fn understand<T: DeserializeOwned>(words: &[u8]) -> Result<T, FabricError> {
    serde_json::from_slice(words).map_err(|error| {
        let cause = Cause::corrupt(format!("a message that cannot be read: {error}"));
        FabricError::CoordinatorLost { cause }
    })
}

fn dial_directly(party: &Party, rank: usize, by: Instant) -> Result<Found, FabricError> {
    let (ways, stream) = match party.reach(rank, by) {
        Ok(found) => found,
        Err(why) => return Ok(Found::Unreached(why)),
    };
    let line = Line { direct: true, cables: ways.len(), dial_again: &|index| ways[index % ways.len()].connect(by) };
    let bond = pairing::dial(party, rank, stream, &line, by)?;
    Ok(Found::Bond { bond, cables: ways.len() })
}

fn dial_through_others(party: &Party, topology: &Topology, rank: usize, by: Instant) -> Result<Found, FabricError> {
    let line = Line { direct: false, cables: 1, dial_again: &|_| passage::open(party, topology, rank, by) };
    let stream = (line.dial_again)(0)?;
    let bond = pairing::dial(party, rank, stream, &line, by)?;
    Ok(Found::Bond { bond, cables: 0 })
}
