//! Two ranks connect their RDMA ports, over the connection on which they have met.
//!
//! Both sides run the same steps in lockstep: each says how its own part went, hears how the other's did, and both go on
//! or try something else by the same rule, so that they always come to the same verdict.
//!
//! For each pair of ports that a cable may join, until there is a rail on each cable: make queue pairs (INIT), tell their
//! numbers, connect (RTR), start (RTS), post all receives, and only when both sides have done so, send a message of full
//! size on each lane in each direction. Fresh queue pairs are dead in one direction at times, and not every provider takes
//! every size of packets: what does not come to life is made anew, with the other size, a few times. Reliable
//! connections are tried first, then unreliable ones.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use verbs::Mtu;

use super::cards::{CARDS_MAX, Card, LocalCard, Meeting, candidates, local_cards};
use super::frame::FrameKind;
use super::link::RdmaLink;
use super::port::{Ends, Mode, PortWire, Prepared};
use super::rail::{Rail, Session};
use super::wire::{Lane, RailShape};
use crate::error::Cause;
use crate::link::Cable;
use crate::rendezvous::{read_json, write_json};
use crate::secret::random_bytes;
use crate::timed::Connection;

/// Counts changes of what is said here and of frames.
const VERSION: u32 = 1;
/// The most rails of a link.
const RAILS_MAX: usize = 4;
/// Pairs of ports that may turn out not to be joined before no more are tried.
const FAILURES_MAX: usize = 4;
/// Tries at ports that should be joined, and at others.
const TRIES: [usize; 2] = [4, 1];
/// How long messages of full size may take, in the same order.
const WARM_UP: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(1)];

/// Which side of the connection this one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its cards come first.
    Acceptor,
    Dialer,
}

/// What this side wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RdmaOptions {
    pub(crate) reliable: bool,
    pub(crate) unreliable: bool,
    /// Whether both ranks run on this machine.
    pub(crate) same_host: bool,
    /// The most rails to make.
    pub(crate) rails: usize,
}

impl RdmaOptions {
    /// The usual. For tests and for the search of faults, `ROPEWALK_RDMA=rc` or `ROPEWALK_RDMA=uc` leaves only reliable
    /// or only unreliable connections.
    pub(crate) fn new(same_host: bool) -> Self {
        let only = std::env::var("ROPEWALK_RDMA").unwrap_or_default();
        // Within a host, the ports of other cables are those of other ranks.
        let rails = if same_host { 1 } else { RAILS_MAX };
        Self { reliable: only != "uc", unreliable: only != "rc", same_host, rails }
    }
}

/// Where a link is to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) role: Role,
    pub(crate) generation: u32,
    /// The addresses of the connection.
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
}

/// First words of each side.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u32,
    cards: Vec<Card>,
    /// Why there are none, or not all.
    problems: Vec<String>,
    reliable: bool,
    unreliable: bool,
    rails: usize,
    /// Random.
    seed: u32,
}

/// How one side's part of a step went.
#[derive(Debug, Serialize, Deserialize)]
enum Step<T> {
    Done(T),
    Failed { why: String },
}

/// How to reach one side's queue pairs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Numbers {
    lid: u16,
    queue_pairs: [u32; 2],
    first_packets: [u32; 2],
    /// Bytes, pieces and notes of each lane.
    lanes: [(usize, u32, u16); 2],
}

/// A conversation with the other side.
struct Talk<'a, C> {
    connection: &'a C,
    by: Instant,
}

impl<C: Connection> Talk<'_, C> {
    /// Tells how this side's part went, and hears how the other's did. The inner error is the reason why it failed on
    /// either side.
    fn exchange<T: Serialize, U: for<'a> Deserialize<'a>>(
        &self,
        ours: Result<T, String>,
    ) -> Result<Result<(T, U), String>, Cause> {
        let (step, ours) = match ours {
            Ok(value) => (Step::Done(value), Ok(())),
            Err(why) => (Step::Failed { why: why.clone() }, Err(why)),
        };
        write_json(self.connection, &step, self.by)?;
        let theirs: Step<U> = read_json(self.connection, self.by)?;
        Ok(match (step, ours, theirs) {
            (Step::Done(ours), Ok(()), Step::Done(theirs)) => Ok((ours, theirs)),
            (_, Err(why), _) => Err(why),
            (_, _, Step::Failed { why }) => Err(format!("the other side: {why}")),
            (Step::Failed { why }, ..) => Err(why),
        })
    }

    /// As [`Talk::exchange`], with nothing to say but that it went well.
    fn agree(&self, ours: Result<(), String>) -> Result<Result<(), String>, Cause> {
        Ok(self.exchange::<(), ()>(ours)?.map(|_| ()))
    }
}

/// Makes a link over RDMA with the other side, which does the same. The inner error says why there is none, and is one on
/// both sides.
///
/// # Errors
/// When the connection fails, or the other side breaks the protocol.
pub(crate) fn bring_up(
    connection: &impl Connection,
    place: Place,
    options: RdmaOptions,
    by: Instant,
) -> Result<Result<RdmaLink<PortWire>, String>, Cause> {
    let (cards, problems) = match local_cards() {
        Ok((cards, problems)) => (cards, problems.iter().map(ToString::to_string).collect()),
        Err(error) => (Vec::new(), vec![error.to_string()]),
    };
    let seed = random_bytes::<4>().map_err(|error| Cause::Rdma(error.to_string()))?;
    let ours = Hello {
        version: VERSION,
        cards: cards.iter().map(|card| card.card.clone()).collect(),
        problems,
        reliable: options.reliable,
        unreliable: options.unreliable,
        rails: options.rails,
        seed: u32::from_le_bytes(seed),
    };
    write_json(connection, &ours, by)?;
    let theirs: Hello = read_json(connection, by)?;
    if theirs.cards.len() > CARDS_MAX || !theirs.cards.iter().all(Card::is_sound) {
        return Err(Cause::corrupt("it describes RDMA ports that cannot be"));
    }
    if theirs.version != VERSION {
        return Ok(Err(format!("the other side's RDMA has version {}, this one's {VERSION}", theirs.version)));
    }
    let talk = Talk { connection, by };
    Builder { talk, place, options, cards: &cards, ours: &ours, theirs: &theirs, attempts: 0 }.build()
}

/// Makes rails one after the other.
struct Builder<'a, C> {
    talk: Talk<'a, C>,
    place: Place,
    options: RdmaOptions,
    cards: &'a [LocalCard],
    ours: &'a Hello,
    theirs: &'a Hello,
    /// So far, on any ports.
    attempts: u32,
}

impl<C: Connection> Builder<'_, C> {
    fn build(mut self) -> Result<Result<RdmaLink<PortWire>, String>, Cause> {
        if let Some(why) = self.hopeless() {
            return Ok(Err(why));
        }
        let pairs = self.candidates();
        let wanted = self.ours.rails.min(self.theirs.rails).clamp(1, RAILS_MAX);
        let (mut rails, mut cables, mut used) = (Vec::new(), Vec::new(), Vec::new());
        let (mut mode, mut reasons) = (None, Vec::new());
        for (ours, theirs) in pairs {
            if rails.len() == wanted || reasons.len() >= FAILURES_MAX {
                break;
            }
            if used.iter().any(|&(i, j)| i == ours || j == theirs) {
                continue;
            }
            match self.rail(ours, theirs, mode)? {
                Ok((rail, made)) => {
                    rails.push(rail);
                    cables.push(Cable {
                        local: self.cards[ours].card.address.into(),
                        remote: self.theirs.cards[theirs].address.into(),
                    });
                    used.push((ours, theirs));
                    mode = Some(made);
                }
                Err(why) => {
                    tracing::debug!("no rail between {}: {why}", self.names(ours, theirs));
                    reasons.push(format!("{}: {why}", self.names(ours, theirs)));
                }
            }
        }
        if rails.is_empty() {
            let none = || "no two ports of the machines have addresses of one network".to_owned();
            return Ok(Err(if reasons.is_empty() { none() } else { reasons.join("; ") }));
        }
        tracing::debug!("RDMA over {} cables, {mode:?}", rails.len());
        Ok(Ok(RdmaLink::new(rails, cables)))
    }

    /// Why nothing needs to be tried, by a rule that is the same for both sides.
    fn hopeless(&self) -> Option<String> {
        let lacks = |hello: &Hello, whose: &str| {
            let why = if hello.problems.is_empty() { "no device".to_owned() } else { hello.problems.join("; ") };
            hello.cards.is_empty().then(|| format!("{whose}: {}", why.chars().take(500).collect::<String>()))
        };
        let modes = self.ours.reliable && self.theirs.reliable || self.ours.unreliable && self.theirs.unreliable;
        lacks(self.ours, "this side").or_else(|| lacks(self.theirs, "the other side")).or_else(|| {
            (!modes).then(|| "one side wants reliable connections, the other one unreliable ones".to_owned())
        })
    }

    /// Pairs of places among this side's and the other's cards, in the same order on both sides.
    fn candidates(&self) -> Vec<(usize, usize)> {
        let Place { role, local, peer, .. } = self.place;
        let same_host = self.options.same_host;
        match role {
            Role::Acceptor => {
                candidates(&self.ours.cards, &self.theirs.cards, Meeting { first: local, second: peer, same_host })
            }
            Role::Dialer => {
                let meeting = Meeting { first: peer, second: local, same_host };
                let pairs = candidates(&self.theirs.cards, &self.ours.cards, meeting);
                pairs.into_iter().map(|(theirs, ours)| (ours, theirs)).collect()
            }
        }
    }

    fn names(&self, ours: usize, theirs: usize) -> String {
        let (ours, theirs) = (&self.ours.cards[ours], &self.theirs.cards[theirs]);
        format!("{} ({}) and {} ({})", ours.name, ours.address, theirs.name, theirs.address)
    }

    /// Makes a rail between two ports, of the mode that other rails have, if any.
    fn rail(
        &mut self,
        ours: usize,
        theirs: usize,
        mode: Option<Mode>,
    ) -> Result<Result<(Rail<PortWire>, Mode), String>, Cause> {
        let (our_card, their_card) = (&self.ours.cards[ours], &self.theirs.cards[theirs]);
        let reliable = self.ours.reliable && self.theirs.reliable && our_card.reliable && their_card.reliable;
        let unreliable = self.ours.unreliable && self.theirs.unreliable;
        let modes = [(reliable, Mode::Reliable), (unreliable, Mode::Unreliable)];
        let modes = modes.into_iter().filter(|(wanted, it)| *wanted && mode.is_none_or(|mode| mode == *it));
        // Both sides know the cards of both, and so go through the same sizes.
        let largest = Mtu::from_bytes(our_card.mtu.min(their_card.mtu)).unwrap_or(Mtu::B1024);
        let sizes = [largest, largest.min(Mtu::B1024)];
        let unlikely = usize::from(mode.is_some());
        let mut reasons = Vec::new();
        for (_, mode) in modes {
            for attempt in 0..TRIES[unlikely] {
                let mtu = sizes[attempt % sizes.len()];
                self.attempts += 1;
                match self.attempt(ours, theirs, mode, mtu, WARM_UP[unlikely])? {
                    Ok(rail) => {
                        if !reasons.is_empty() {
                            tracing::info!(
                                "RDMA: {mode:?} between {}, as {}",
                                self.names(ours, theirs),
                                reasons.join("; ")
                            );
                        }
                        return Ok(Ok((rail, mode)));
                    }
                    Err(why) => reasons.push(format!("{mode:?}, packets of {} bytes: {why}", mtu.bytes())),
                }
            }
        }
        Ok(Err(reasons.join("; ")))
    }

    /// One try with new queue pairs.
    fn attempt(
        &self,
        ours: usize,
        theirs: usize,
        mode: Mode,
        mtu: Mtu,
        warm_up: Duration,
    ) -> Result<Result<Rail<PortWire>, String>, Cause> {
        let text = |cause: Cause| cause.to_string();
        let prepared = Prepared::new(&self.cards[ours], mode).map_err(text);
        let (prepared, numbers) = match prepared {
            Ok(prepared) => {
                let numbers = numbers(&prepared.ends(), mode);
                (Some(prepared), Ok(numbers))
            }
            Err(why) => (None, Err(why)),
        };
        let (mut prepared, their_numbers) = match (self.talk.exchange::<Numbers, Numbers>(numbers)?, prepared) {
            (Ok((_, theirs)), Some(prepared)) => (prepared, theirs),
            (Err(why), _) => return Ok(Err(why)),
            (Ok(_), None) => return Err(Cause::corrupt("a step that failed and went well")),
        };
        let remote = check_numbers(&their_numbers, &self.theirs.cards[theirs], mode)?;
        let connected = prepared.connect(&remote, mtu).map_err(text);
        if let Err(why) = self.talk.agree(connected)? {
            return Ok(Err(why));
        }
        let session = Session { generation: self.place.generation, number: self.session() };
        let rail =
            prepared.start().and_then(|(wire, slots)| Rail::new(wire, mode.shape(), session, slots)).map_err(text);
        let (rail, posted) = match rail {
            Ok(rail) => (Some(rail), Ok(())),
            Err(why) => (None, Err(why)),
        };
        let mut rail = match (self.talk.agree(posted)?, rail) {
            (Ok(()), Some(rail)) => rail,
            (Err(why), _) => return Ok(Err(why)),
            (Ok(()), None) => return Err(Cause::corrupt("a step that failed and went well")),
        };
        let warm = warm_up_rail(&mut rail, warm_up);
        Ok(self.talk.agree(warm)?.map(|()| rail))
    }

    /// A number that both sides know and that no earlier connection had, as far as chance can see to it.
    fn session(&self) -> u32 {
        (self.ours.seed ^ self.theirs.seed).wrapping_add(self.attempts.wrapping_mul(0x9e37_79b9))
    }
}

fn lanes_of(shape: RailShape) -> [(usize, u32, u16); 2] {
    shape.lanes.map(|lane| (lane.bytes, lane.pieces, lane.notes))
}

fn numbers(ends: &Ends, mode: Mode) -> Numbers {
    let Ends { lid, numbers, first_packets, .. } = *ends;
    Numbers { lid, queue_pairs: numbers, first_packets, lanes: lanes_of(mode.shape()) }
}

/// Believes what the other side says about its queue pairs, if it can be.
fn check_numbers(theirs: &Numbers, card: &Card, mode: Mode) -> Result<Ends, Cause> {
    let fit = |number: u32| number <= verbs::NUMBER_MAX;
    if !theirs.queue_pairs.into_iter().chain(theirs.first_packets).all(fit) || theirs.queue_pairs.contains(&0) {
        return Err(Cause::corrupt("it has queue pairs that cannot be"));
    }
    if theirs.lanes != lanes_of(mode.shape()) {
        return Err(Cause::corrupt("it sends frames of other lengths; run the same version on both machines"));
    }
    let Numbers { lid, queue_pairs: numbers, first_packets, .. } = *theirs;
    Ok(Ends { address: card.address, lid, numbers, first_packets })
}

/// Sends a message of full size on each lane, and waits for the other side's.
fn warm_up_rail(rail: &mut Rail<PortWire>, patience: Duration) -> Result<(), String> {
    let text = |cause: Cause| cause.to_string();
    for lane in Lane::BOTH {
        rail.send_note(lane, FrameKind::Probe, 0).map_err(text)?;
    }
    let started = Instant::now();
    while rail.probed != [true; 2] || rail.sends_out() > 0 {
        if !rail.poll().map_err(text)? {
            std::thread::yield_now();
        }
        rail.tell().map_err(text)?;
        if started.elapsed() > patience {
            return Err(format!("nothing came within {patience:?}"));
        }
    }
    Ok(())
}

/// Reads bytes as what the other side may say. For fuzzing only.
pub(crate) fn understand(bytes: &[u8]) {
    if let Ok(hello) = serde_json::from_slice::<Hello>(bytes) {
        let sound: Vec<Card> = hello.cards.into_iter().filter(Card::is_sound).collect();
        let address = IpAddr::from([10, 0, 0, 1]);
        candidates(&sound, &sound, Meeting { first: address, second: address, same_host: true });
    }
    if let Ok(Step::Done(numbers)) = serde_json::from_slice::<Step<Numbers>>(bytes) {
        let card = Card { name: String::new(), address: [10, 0, 0, 1].into(), prefix: 8, mtu: 1024, reliable: true };
        if let Ok(ends) = check_numbers(&numbers, &card, Mode::Reliable) {
            assert!(ends.numbers.into_iter().all(|number| number <= verbs::NUMBER_MAX));
        }
    }
}
