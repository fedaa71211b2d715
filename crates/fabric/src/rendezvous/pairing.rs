//! Two ranks agree on what their link is made of, over a TCP connection which then watches over it: their lifeline.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::authentication::{address_of, authenticate_acceptor, authenticate_dialer};
use super::frame::{read_json, write_json};
use super::party::Party;
use super::passage;
use super::wire::{Call, Mapping, Offer};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::link::rdma::{self, Place, RdmaOptions, Role, bring_up};
use crate::link::{Link, SharedFile, SharedMemoryLink, TcpLink, Transport, ring_bytes};
use crate::timed::end_of;

/// The most connections that a TCP link is made of.
const STRIPES_MAX: usize = 16;
/// How long it may take to connect ports: all tries at several cables.
const CONNECT_PORTS_PATIENCE: Duration = Duration::from_secs(60);

impl Party {
    /// What to try with rank `other`, which wants `theirs`. The flag says whether TCP may stand in.
    fn choose(&self, other: usize, theirs: Transport) -> Result<(Transport, bool), String> {
        match (self.wishes.transport, theirs) {
            (wanted @ (Transport::SharedMemory | Transport::Rdma), _)
            | (_, wanted @ (Transport::SharedMemory | Transport::Rdma))
                if self.encrypts(other) =>
            {
                Err(format!("links over {wanted} cannot be encrypted; ask for TCP"))
            }
            _ if self.encrypts(other) => Ok((Transport::Tcp, false)),
            (Transport::Auto, Transport::Auto) if self.same_host(other) => Ok((Transport::SharedMemory, true)),
            (Transport::Auto, Transport::Auto) => Ok((Transport::Rdma, true)),
            (Transport::Auto, one) | (one, Transport::Auto) => Ok((one, false)),
            (ours, theirs) if ours == theirs => Ok((ours, false)),
            (ours, theirs) => Err(format!(
                "rank {} wants {ours} and rank {other} wants {theirs}; give both the same transport",
                self.rank
            )),
        }
    }
}

/// What two ranks have once they have agreed.
pub(crate) struct Bond {
    pub(crate) link: Box<dyn Link>,
    /// The connection over which they met. It carries none of the link's data.
    pub(crate) lifeline: Channel,
}

/// What a caller turned out to want.
pub(crate) enum Caller {
    /// To be linked, which it now is.
    Bonded(usize, Bond),
    /// To bring one more connection for a link that is being made, or to pass through to another rank.
    Served,
}

/// How to connect to the rank that is being dialled.
pub(crate) struct Line<'a> {
    /// Whether no other rank passes the bytes on.
    pub(crate) direct: bool,
    /// The cables over which it can be reached, at least one.
    pub(crate) cables: usize,
    /// Opens one more connection, by its number among them.
    pub(crate) dial_again: &'a dyn Fn(usize) -> Result<TcpStream, FabricError>,
}

/// Makes the link to a lower rank, which has been connected to.
pub(crate) fn dial(
    party: &Party,
    to: usize,
    stream: TcpStream,
    line: &Line<'_>,
    by: Instant,
) -> Result<Bond, FabricError> {
    let lifeline = authenticate_dialer(stream, &party.terms(), party.encrypts(to), by)?;
    let lost = |cause| FabricError::PeerLost { rank: to, cause };
    let call = Call::Bond {
        rank: party.rank,
        to,
        generation: party.generation,
        transport: party.wishes.transport,
        cables: line.cables,
        connections: party.wishes.connections,
        direct: line.direct,
    };
    write_json(&lifeline, &call, by).map_err(lost)?;
    loop {
        match read_json(&lifeline, by).map_err(lost)? {
            Offer::Tcp { ticket, connections } => {
                let streams = dial_stripes(party, to, &ticket, connections, line, by)?;
                return Ok(Bond { link: Box::new(TcpLink::new(streams)), lifeline });
            }
            Offer::Rdma => match connect_ports(party, to, &lifeline, Role::Dialer, by).map_err(lost)? {
                Ok(link) => return Ok(Bond { link, lifeline }),
                Err(why) => tracing::debug!("no RDMA between ranks {} and {to}: {why}", party.rank),
            },
            Offer::SharedMemory { file } => match SharedFile::open(&file) {
                Ok(memory) => {
                    write_json(&lifeline, &Mapping::Mapped, by).map_err(lost)?;
                    return Ok(Bond { link: Box::new(SharedMemoryLink::dialer(memory)), lifeline });
                }
                Err(error) => {
                    let why = format!("rank {} cannot map {file}: {error}", party.rank);
                    write_json(&lifeline, &Mapping::Failed { why }, by).map_err(lost)?;
                }
            },
            Offer::Refused { why } => return Err(FabricError::Refused { whom: format!("rank {to}"), why }),
        }
    }
}

/// Opens the connections of a TCP link.
fn dial_stripes(
    party: &Party,
    to: usize,
    ticket: &str,
    connections: usize,
    line: &Line<'_>,
    by: Instant,
) -> Result<Vec<Channel>, FabricError> {
    let lost = |cause| FabricError::PeerLost { rank: to, cause };
    if !(1..=STRIPES_MAX).contains(&connections) {
        return Err(lost(Cause::corrupt(format!("it asked for {connections} connections"))));
    }
    let dial = |index| {
        let stream = (line.dial_again)(index)?;
        let stream = authenticate_dialer(stream, &party.terms(), party.encrypts(to), by)?;
        write_json(&stream, &Call::Stripe { ticket: ticket.to_owned(), index }, by).map_err(lost)?;
        Ok(stream)
    };
    (0..connections).map(dial).collect()
}

/// Hears a caller out: a higher rank that wants a link, one more connection of a link, or a rank that wants to pass.
pub(crate) fn answer(party: &Party, stream: TcpStream, by: Instant) -> Result<Caller, FabricError> {
    let whom = address_of(&stream);
    let stream = authenticate_acceptor(stream, &party.terms(), by)?;
    let broken = |cause| FabricError::Handshake { whom: whom.clone(), cause };
    match read_json(&stream, by).map_err(broken)? {
        Call::Stripe { ticket, index } => {
            party.stripes.deliver(&ticket, index, stream).map_err(broken)?;
            Ok(Caller::Served)
        }
        Call::Passage { from, to, generation } => {
            passage::serve(party, stream, (from, to, generation), by)?;
            Ok(Caller::Served)
        }
        Call::Bond { rank, to, generation, transport, cables, connections, direct } => {
            let lifeline = stream;
            let known = rank > party.rank && rank < party.size();
            let decided = if known && party.encrypts(rank) && !lifeline.is_encrypted() {
                Err(format!("rank {} wants to encrypt and rank {rank} does not; give both the same option", party.rank))
            } else if known && to == party.rank && generation == party.generation {
                party.choose(rank, transport).map(|choice| over_the_way(choice, direct))
            } else {
                Err(format!("rank {rank} of generation {generation} has no business with rank {}", party.rank))
            };
            let connections = connections.max(party.wishes.connections).saturating_mul(cables).clamp(1, STRIPES_MAX);
            match decided.and_then(|choice| agree(party, rank, choice, connections, &lifeline, by)) {
                Ok(link) => Ok(Caller::Bonded(rank, Bond { link: link?, lifeline })),
                Err(why) => {
                    let refusal = Offer::Refused { why: why.clone() };
                    write_json(&lifeline, &refusal, by).map_err(broken)?;
                    Err(FabricError::Refused { whom, why })
                }
            }
        }
    }
}

/// Makes a link of the chosen kind with a rank that has called. The outer error is a reason to refuse it.
fn agree(
    party: &Party,
    rank: usize,
    (transport, tcp_will_do): (Transport, bool),
    connections: usize,
    lifeline: &Channel,
    by: Instant,
) -> Result<Result<Box<dyn Link>, FabricError>, String> {
    let lost = |cause| FabricError::PeerLost { rank, cause };
    if transport == Transport::SharedMemory {
        match offer_memory(party, lifeline, by) {
            Err(cause) => return Ok(Err(lost(cause))),
            Ok(Ok(memory)) => return Ok(Ok(Box::new(SharedMemoryLink::acceptor(memory)))),
            Ok(Err(why)) if tcp_will_do => {
                tracing::warn!("ranks {} and {rank} use TCP, as they cannot share memory: {why}", party.rank);
            }
            Ok(Err(why)) => return Err(why),
        }
    }
    if transport == Transport::Rdma {
        let offered = write_json(lifeline, &Offer::Rdma, by);
        match offered.and_then(|()| connect_ports(party, rank, lifeline, Role::Acceptor, by)) {
            Err(cause) => return Ok(Err(lost(cause))),
            Ok(Ok(link)) => return Ok(Ok(link)),
            Ok(Err(why)) if tcp_will_do => {
                tracing::warn!("ranks {} and {rank} use TCP, as RDMA does not work: {why}", party.rank);
            }
            Ok(Err(why)) => return Err(why),
        }
    }
    let offer = || {
        let expectation = party.stripes.expect(connections)?;
        let offer = Offer::Tcp { ticket: expectation.ticket.clone(), connections };
        write_json(lifeline, &offer, by).map_err(lost)?;
        expectation.wait(by).map_err(lost)
    };
    Ok(offer().map(|streams| Box::new(TcpLink::new(streams)) as Box<dyn Link>))
}

/// What to try of what both want, given whether they are connected directly. Without a cable between the two there is
/// no RDMA, whatever they want.
fn over_the_way((transport, tcp_will_do): (Transport, bool), direct: bool) -> (Transport, bool) {
    match transport {
        Transport::Rdma if !direct || tcp_will_do && !rdma::is_here() => (Transport::Tcp, false),
        other => (other, tcp_will_do),
    }
}

/// Makes a link over RDMA with a rank that does the same. The inner error says why there is none.
fn connect_ports(
    party: &Party,
    rank: usize,
    lifeline: &Channel,
    role: Role,
    by: Instant,
) -> Result<Result<Box<dyn Link>, String>, Cause> {
    // Whoever has got so far knows the secret, and is given more time than a stranger.
    let by = by.max(end_of(CONNECT_PORTS_PATIENCE));
    let (local, peer) = (lifeline.local_addr()?.ip(), lifeline.peer_addr()?.ip());
    let place = Place { role, generation: party.generation, local, peer };
    let link = bring_up(lifeline, place, RdmaOptions::new(party.same_host(rank)), by)?;
    Ok(link.map(|link| Box::new(link) as Box<dyn Link>))
}

/// A way to create memory of two rings of some bytes.
type Create = fn(usize) -> io::Result<SharedFile>;

/// Creates memory and has the other rank map it. The inner error says why that did not work out.
fn offer_memory(party: &Party, stream: &Channel, by: Instant) -> Result<Result<SharedFile, String>, Cause> {
    let ring_bytes = ring_bytes(party.ranks_here());
    let ways: [(&str, Create); 2] = [("without a name", SharedFile::sealed), ("with a name", SharedFile::named)];
    let mut failures = Vec::new();
    for (what, create) in ways {
        let mut memory = match create(ring_bytes) {
            Ok(memory) => memory,
            Err(error) => {
                failures.push(format!("a file {what} cannot be created: {error}"));
                continue;
            }
        };
        write_json(stream, &Offer::SharedMemory { file: memory.name().to_owned() }, by)?;
        // The file's name goes with the answer, whatever it is: both have mapped it, or the other never will.
        let answer = read_json(stream, by);
        memory.unlink();
        match answer? {
            Mapping::Mapped => return Ok(Ok(memory)),
            Mapping::Failed { why } => failures.push(format!("a file {what}: {why}")),
        }
    }
    Ok(Err(failures.join("; ")))
}
