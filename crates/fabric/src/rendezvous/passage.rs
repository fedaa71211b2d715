//! Connections to ranks that cannot be reached directly, through ranks that can.
//!
//! The rank that dials calls its neighbour on the way and names whom it wants to reach. The neighbour connects to that
//! rank, or calls the next one on the way, answers, and from then on passes bytes on. What follows between the two ends
//! is as on any other connection: neither trusts those in between with more than to carry bytes.

use std::net::TcpStream;
use std::time::Instant;

use super::authentication::authenticate_dialer;
use super::frame::{read_json, write_json};
use super::party::Party;
use super::wire::{Call, Passage};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::topology::Topology;

/// Opens a connection to a rank, through others if need be.
pub(crate) fn open(party: &Party, topology: &Topology, to: usize, by: Instant) -> Result<TcpStream, FabricError> {
    open_for(party, topology, party.rank, to, by)
}

/// As [`open`], for a rank that the connection comes from.
fn open_for(party: &Party, topology: &Topology, from: usize, to: usize, by: Instant) -> Result<TcpStream, FabricError> {
    let next = topology.next_hop(party.rank, to);
    let (_, stream) = party.reach(next, by).map_err(|why| {
        FabricError::Invalid(format!("rank {} no longer reaches rank {next}, as it did before: {why}", party.rank))
    })?;
    if next == to {
        return Ok(stream);
    }
    // Nothing is said here that only the two ends should know, and what they say to each other they encrypt themselves.
    let stream = authenticate_dialer(stream, &party.terms(), false, by)?;
    let lost = |cause| FabricError::PeerLost { rank: next, cause };
    write_json(&stream, &Call::Passage { from, to, generation: party.generation }, by).map_err(lost)?;
    match read_json(&stream, by).map_err(lost)? {
        Passage::Open => stream.into_plain().map_err(|_| lost(Cause::corrupt("it encrypts unasked"))),
        Passage::Refused { why } => {
            Err(FabricError::Refused { whom: format!("rank {next}, on the way to rank {to},"), why })
        }
    }
}

/// Serves a rank that has called for a passage.
pub(crate) fn serve(
    party: &Party,
    stream: Channel,
    (from, to, generation): (usize, usize, u32),
    by: Instant,
) -> Result<(), FabricError> {
    let connect = || {
        let (topology, relay) = party.map.wait(by)?;
        let ranks = 0..topology.size();
        let is_on_the_way = generation == party.generation
            && ranks.contains(&from)
            && ranks.contains(&to)
            && ![from, to].contains(&party.rank)
            && topology.hops(from, party.rank) + topology.hops(party.rank, to) == topology.hops(from, to);
        let relay = relay.filter(|_| is_on_the_way).ok_or_else(|| {
            FabricError::Invalid(format!(
                "rank {} is not on the way from rank {from} to rank {to} of generation {generation}",
                party.rank
            ))
        })?;
        Ok((open_for(party, &topology, from, to, by)?, relay))
    };
    let broken = |cause| FabricError::Handshake { whom: stream.whom(), cause };
    match connect() {
        Ok((onwards, relay)) => {
            let refused = |stream: Channel| {
                let why = "a passage is not encrypted by itself".to_owned();
                FabricError::Refused { whom: stream.whom(), why }
            };
            write_json(&stream, &Passage::Open, by).map_err(broken)?;
            relay.join(stream.into_plain().map_err(refused)?, onwards)
        }
        Err(error) => {
            let error: FabricError = error;
            write_json(&stream, &Passage::Refused { why: error.to_string() }, by).map_err(broken)?;
            Err(error)
        }
    }
}
