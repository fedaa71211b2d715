//! The coordinator's side: waits for the ranks, numbers them, hands out jobs, and hears that all links are up.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::addresses::ADDRESSES_MAX;
use super::authentication::{Purpose, Terms, authenticate_acceptor};
use super::conduct::{ANSWER_PATIENCE, conduct};
use super::conductor;
use super::control::{Control, Counterpart};
use super::frame::{check_length, read_frame, read_json, write_frame, write_json};
use super::party::host_numbers;
use super::reception::{Reception, Visit};
use super::wire::{Answer, Introduction, RankAddress, Welcome};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::secret::{Secret, hex, random_bytes};
use crate::timed::end_of;

/// The most ranks that a group can have.
pub const MAX_RANKS: usize = 256;
/// How often a gathering looks whether it has been stopped and whether the ranks that came are still there.
const GLANCE: Duration = Duration::from_millis(50);

/// What [`RendezvousOptions::observer`] takes.
pub type Observer = Box<dyn FnMut(&RendezvousEvent) + Send>;

/// How a group is gathered.
pub struct RendezvousOptions {
    /// How long the ranks may take to come, and then to connect with each other.
    pub deadline: Duration,
    /// Counts the formings of the group. Messages of another generation are errors.
    pub generation: u32,
    /// Refuses ranks on other machines that do not encrypt; see [`JoinOptions::encrypt`](super::JoinOptions::encrypt).
    pub encrypt: bool,
    /// Hears what happens at the door. The same is logged with `tracing`.
    pub observer: Option<Observer>,
}

impl Default for RendezvousOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(60), generation: 1, encrypt: false, observer: None }
    }
}

/// What happens at the door.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RendezvousEvent {
    /// A rank has come; its number may not be known yet.
    Arrived {
        /// Its address.
        from: SocketAddr,
        /// How many have come with it.
        present: usize,
    },
    /// A connection was dropped: a stranger's, or that of a rank which gave up or asked for what it cannot have.
    Dropped {
        /// Its address.
        from: SocketAddr,
        /// Why.
        why: FabricError,
    },
}

/// What a rank said when it came.
#[derive(Debug, Clone)]
pub struct Hello {
    /// The bytes given as [`JoinOptions::hello`](super::JoinOptions::hello).
    pub payload: Vec<u8>,
    /// Identifies the running system that the rank is on: ranks on one host say the same.
    pub host: String,
    /// The address that the rank's connection came from.
    pub address: SocketAddr,
}

/// Ends a gathering from another thread.
#[derive(Debug, Clone, Default)]
pub struct Stopper(Arc<AtomicBool>);

impl Stopper {
    /// Lets [`Rendezvous::gather`] return [`FabricError::Cancelled`] soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<(), FabricError> {
        if self.0.load(Ordering::Acquire) { Err(FabricError::Cancelled) } else { Ok(()) }
    }
}

/// The meeting point of a group.
pub struct Rendezvous {
    reception: Reception<Arrival>,
    address: SocketAddr,
    size: usize,
    options: RendezvousOptions,
    stopper: Stopper,
}

/// A rank that has introduced itself.
struct Arrival {
    stream: Channel,
    introduction: Introduction,
    hello: Hello,
}

impl Rendezvous {
    /// Listens at `address` (port 0 lets the system choose) for a group of `size` ranks that know the secret.
    ///
    /// # Errors
    /// When the address cannot be listened at, or the size is not in `1..=MAX_RANKS`.
    pub fn listen(
        address: impl ToSocketAddrs,
        secret: &Secret,
        size: usize,
        options: RendezvousOptions,
    ) -> Result<Self, FabricError> {
        check_size(size)?;
        let failed = |error| FabricError::io("cannot listen for the ranks", error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (secret, encrypt) = (secret.clone(), options.encrypt);
        let reception = Reception::new(vec![listener], move |stream, by| greet(stream, &secret, encrypt, by))?;
        Ok(Self { reception, address, size, options, stopper: Stopper::default() })
    }

    /// Where the ranks have to go.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends [`Rendezvous::gather`] early, such as when a rank's process could not be started.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until all ranks have come, asks `job_for` for each rank's job in order of rank, and waits until all have
    /// connected with each other. Strangers and ranks with the wrong secret are dropped and reported; they do not
    /// disturb the others. The controls come in order of rank.
    ///
    /// # Errors
    /// When ranks are missing at the deadline, a rank fails to connect with the others, or the stopper was used.
    pub fn gather(&mut self, mut job_for: impl FnMut(usize, &Hello) -> Vec<u8>) -> Result<Vec<Control>, FabricError> {
        let arrivals = self.await_arrivals()?;
        let jobs: Vec<Vec<u8>> = arrivals.iter().enumerate().map(|(rank, it)| job_for(rank, &it.hello)).collect();
        for (rank, job) in jobs.iter().enumerate() {
            check_length(&format!("a job for rank {rank}"), job.len())?;
        }
        let ranks = arrivals.iter().map(|it| RankAddress {
            host: it.introduction.host.clone(),
            listeners: it.introduction.listeners.clone(),
            doors: it.introduction.doors.clone(),
        });
        let mut welcome = Welcome {
            rank: 0,
            generation: self.options.generation,
            session: hex(&random_bytes::<16>()?),
            ranks: ranks.collect(),
        };
        for (rank, (arrival, job)) in arrivals.iter().zip(jobs).enumerate() {
            welcome.rank = rank;
            let by = end_of(ANSWER_PATIENCE);
            write_json(&arrival.stream, &Answer::Welcome(welcome.clone()), by)
                .and_then(|()| write_frame(&arrival.stream, &job, by))
                .map_err(|cause| FabricError::PeerLost { rank, cause })?;
        }
        let channels: Vec<&Channel> = arrivals.iter().map(|it| &it.stream).collect();
        conduct(&channels, host_numbers(&welcome.ranks), self.options.deadline, || self.stopper.check())?;
        let controls = arrivals.into_iter().enumerate();
        Ok(controls.map(|(rank, it)| Control::new(it.stream, Counterpart::Rank(rank))).collect())
    }

    /// As [`Rendezvous::gather`], once more, for a group of another size maybe: its generation is the next one. Ranks of
    /// the old group come by calling [`join`](super::join) again, others may come in place of those that were lost.
    ///
    /// # Errors
    /// As for [`Rendezvous::gather`], or when the size is not in `1..=MAX_RANKS`.
    pub fn gather_again(
        &mut self,
        size: usize,
        job_for: impl FnMut(usize, &Hello) -> Vec<u8>,
    ) -> Result<Vec<Control>, FabricError> {
        check_size(size)?;
        self.size = size;
        self.options.generation += 1;
        self.gather(job_for)
    }

    /// Waits for all ranks to come, and returns them in order of rank.
    fn await_arrivals(&mut self) -> Result<Vec<Arrival>, FabricError> {
        let deadline = end_of(self.options.deadline);
        let mut present: Vec<Arrival> = Vec::with_capacity(self.size);
        while present.len() < self.size {
            self.stopper.check()?;
            if Instant::now() >= deadline {
                return Err(FabricError::Timeout {
                    what: format!("the arrival of all {} ranks ({} came)", self.size, present.len()),
                    after: self.options.deadline,
                });
            }
            let visit = self.reception.next(deadline.min(end_of(GLANCE)), None)?;
            self.drop_departed(&mut present);
            let Some(Visit { from, outcome }) = visit else { continue };
            match outcome.and_then(|arrival| admit(arrival, &present, self.size)) {
                Ok(arrival) => {
                    present.push(arrival);
                    self.report(&RendezvousEvent::Arrived { from, present: present.len() });
                }
                Err(why) => self.report(&RendezvousEvent::Dropped { from, why }),
            }
        }
        Ok(in_order_of_rank(present))
    }

    /// A rank that has ended again makes room for another one.
    fn drop_departed(&mut self, present: &mut Vec<Arrival>) {
        for index in (0..present.len()).rev() {
            // Ranks say nothing before they are welcomed: any sign is one of departure, or against the protocol.
            let cause = match present[index].stream.has_spoken() {
                Ok(false) => continue,
                Ok(true) => Cause::corrupt("it spoke before it was welcomed"),
                Err(cause) => cause,
            };
            let from = present.remove(index).hello.address;
            self.report(&RendezvousEvent::Dropped {
                from,
                why: FabricError::Handshake { whom: from.to_string(), cause },
            });
        }
    }

    fn report(&mut self, event: &RendezvousEvent) {
        match event {
            RendezvousEvent::Arrived { from, present } => {
                tracing::debug!("a rank came from {from}: {present} of {}", self.size);
            }
            RendezvousEvent::Dropped { from, why } => tracing::warn!("dropped a connection from {from}: {why}"),
        }
        if let Some(observer) = &mut self.options.observer {
            observer(event);
        }
    }
}

fn check_size(size: usize) -> Result<(), FabricError> {
    if (1..=MAX_RANKS).contains(&size) {
        return Ok(());
    }
    Err(FabricError::Invalid(format!("a group of {size} ranks; 1 to {MAX_RANKS} are possible")))
}

/// Authenticates a visitor and hears its introduction.
fn greet(stream: TcpStream, secret: &Secret, encrypt: bool, by: Instant) -> Result<Arrival, FabricError> {
    let address = stream.peer_addr().map_err(|error| FabricError::io("a rank vanished", error))?;
    let stream = authenticate_acceptor(stream, &Terms { secret, purpose: Purpose::Control, context: &[] }, by)?;
    let broken = |cause| FabricError::Handshake { whom: address.to_string(), cause };
    let introduction: Introduction = read_json(&stream, by).map_err(broken)?;
    let count = introduction.listeners.len().max(introduction.doors.len());
    if count > ADDRESSES_MAX {
        return Err(broken(Cause::corrupt(format!("it has {count} addresses; {ADDRESSES_MAX} are allowed"))));
    }
    let payload = read_frame(&stream, by).map_err(broken)?;
    if encrypt && !stream.is_encrypted() && !address.ip().to_canonical().is_loopback() {
        let why =
            "a rank on another machine that does not encrypt is not let in; both sides need the option".to_owned();
        // If the rank cannot be told, it will find the connection closed.
        let _ = write_json(&stream, &Answer::Refused { why: why.clone() }, by);
        return Err(FabricError::Refused { whom: address.to_string(), why });
    }
    let hello = Hello { payload, host: introduction.host.clone(), address };
    Ok(Arrival { stream, introduction, hello })
}

/// Checks that the rank number which a rank asks for can be had, and tells the rank if not.
fn admit(arrival: Arrival, present: &[Arrival], size: usize) -> Result<Arrival, FabricError> {
    let taken: Vec<_> = present.iter().map(|it| it.introduction.rank).collect();
    let Err(why) = conductor::admit(arrival.introduction.rank, &taken, size) else { return Ok(arrival) };
    let whom = arrival.hello.address.to_string();
    // If the rank cannot be told, it will find the connection closed.
    let _ = write_json(&arrival.stream, &Answer::Refused { why: why.clone() }, end_of(ANSWER_PATIENCE));
    Err(FabricError::Refused { whom, why })
}

fn in_order_of_rank(present: Vec<Arrival>) -> Vec<Arrival> {
    let wishes: Vec<_> = present.iter().map(|it| it.introduction.rank).collect();
    let mut numbered: Vec<(usize, Arrival)> = conductor::numbers(&wishes).into_iter().zip(present).collect();
    numbered.sort_by_key(|(rank, _)| *rank);
    numbered.into_iter().map(|(_, arrival)| arrival).collect()
}
