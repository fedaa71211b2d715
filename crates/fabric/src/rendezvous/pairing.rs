//! Two ranks agree on what their link is made of, over a TCP connection which then either is the link or watches over
//! it.

use std::net::TcpStream;
use std::time::Instant;

use super::authentication::{Purpose, Terms, authenticate_acceptor, authenticate_dialer};
use super::frame::{read_json, write_json};
use super::wire::{Call, Mapping, Offer, Welcome};
use crate::error::{Cause, FabricError};
use crate::link::{Link, SharedFile, SharedMemoryLink, TcpLink, Transport};
use crate::secret::Secret;

/// What a rank brings to each of its connections.
#[derive(Clone)]
pub(crate) struct Party {
    secret: Secret,
    session: Vec<u8>,
    rank: usize,
    generation: u32,
    transport: Transport,
    /// By rank.
    hosts: Vec<String>,
}

impl Party {
    pub(crate) fn new(secret: Secret, welcome: &Welcome, transport: Transport) -> Self {
        Self {
            secret,
            session: welcome.session.clone().into_bytes(),
            rank: welcome.rank,
            generation: welcome.generation,
            transport,
            hosts: welcome.ranks.iter().map(|it| it.host.clone()).collect(),
        }
    }

    fn terms(&self) -> Terms<'_> {
        Terms { secret: &self.secret, purpose: Purpose::Link, context: &self.session }
    }

    /// What to try with rank `other`, which wants `theirs`. The flag says whether TCP may stand in.
    fn choose(&self, other: usize, theirs: Transport) -> Result<(Transport, bool), String> {
        let same_host = self.hosts[self.rank] == self.hosts[other];
        match (self.transport, theirs) {
            (Transport::Auto, Transport::Auto) if same_host => Ok((Transport::SharedMemory, true)),
            (Transport::Auto, Transport::Auto) => Ok((Transport::Tcp, false)),
            (Transport::Auto, one) | (one, Transport::Auto) => Ok((one, false)),
            (ours, theirs) if ours == theirs => Ok((ours, false)),
            (ours, theirs) => Err(format!(
                "rank {} wants {ours} and rank {other} wants {theirs}; give both the same transport",
                self.rank
            )),
        }
    }
}

/// Makes the link to a lower rank, which has been connected to.
pub(crate) fn dial(party: &Party, to: usize, stream: TcpStream, by: Instant) -> Result<Box<dyn Link>, FabricError> {
    authenticate_dialer(&stream, &party.terms(), by)?;
    let lost = |cause| FabricError::PeerLost { rank: to, cause };
    let call = Call { rank: party.rank, generation: party.generation, transport: party.transport };
    write_json(&stream, &call, by).map_err(lost)?;
    loop {
        match read_json(&stream, by).map_err(lost)? {
            Offer::Tcp => return Ok(Box::new(TcpLink::new(stream))),
            Offer::SharedMemory { file } => match SharedFile::open(&file) {
                Ok(memory) => {
                    write_json(&stream, &Mapping::Mapped, by).map_err(lost)?;
                    return Ok(Box::new(SharedMemoryLink::dialer(memory, stream)));
                }
                Err(error) => {
                    let why = format!("rank {} cannot map {file}: {error}", party.rank);
                    write_json(&stream, &Mapping::Failed { why }, by).map_err(lost)?;
                }
            },
            Offer::Refused { why } => return Err(FabricError::Refused { whom: format!("rank {to}"), why }),
        }
    }
}

/// Makes the link to a higher rank, which has called.
pub(crate) fn answer(party: &Party, stream: TcpStream, by: Instant) -> Result<(usize, Box<dyn Link>), FabricError> {
    authenticate_acceptor(&stream, &party.terms(), by)?;
    let whom = super::authentication::address_of(&stream);
    let broken = |cause| FabricError::Handshake { whom: whom.clone(), cause };
    let call: Call = read_json(&stream, by).map_err(broken)?;
    let rank = call.rank;
    let lost = |cause| FabricError::PeerLost { rank, cause };
    let decided = if rank <= party.rank || rank >= party.hosts.len() || call.generation != party.generation {
        Err(format!("it calls itself rank {rank} of generation {}", call.generation))
    } else {
        party.choose(rank, call.transport)
    };
    let refused = match decided {
        Ok((Transport::SharedMemory, tcp_will_do)) => match offer_memory(&stream, by).map_err(lost)? {
            Ok(memory) => return Ok((rank, Box::new(SharedMemoryLink::acceptor(memory, stream)))),
            Err(why) if tcp_will_do => {
                tracing::warn!("ranks {} and {rank} use TCP, as they cannot share memory: {why}", party.rank);
                None
            }
            Err(why) => Some(why),
        },
        Ok(_) => None,
        Err(why) => Some(why),
    };
    match refused {
        None => {
            write_json(&stream, &Offer::Tcp, by).map_err(lost)?;
            Ok((rank, Box::new(TcpLink::new(stream))))
        }
        Some(why) => {
            write_json(&stream, &Offer::Refused { why: why.clone() }, by).map_err(lost)?;
            Err(FabricError::Refused { whom, why })
        }
    }
}

/// Creates a file and has the other rank map it. The inner error says why that did not work out.
fn offer_memory(stream: &TcpStream, by: Instant) -> Result<Result<SharedFile, String>, Cause> {
    let memory = match SharedFile::create() {
        Ok(memory) => memory,
        Err(error) => return Ok(Err(format!("cannot create shared memory: {error}"))),
    };
    write_json(stream, &Offer::SharedMemory { file: memory.name().to_owned() }, by)?;
    // The file's name goes with the answer, whatever it is: both have mapped it, or the other never will.
    let answer = read_json(stream, by);
    memory.unlink();
    Ok(match answer? {
        Mapping::Mapped => Ok(memory),
        Mapping::Failed { why } => Err(why),
    })
}
