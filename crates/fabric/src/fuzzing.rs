//! What fuzz targets feed: the readers of everything that comes from the network while a group forms. For fuzzing only.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::liveness::fuzz as lifeline;
pub use crate::rendezvous::fuzz_authentication as authentication;
use crate::rendezvous::{FrameReader, MAX_FRAME, wire};
use crate::timed::{Connection, end_of};
use crate::topology::Edge;

/// Messages of any bytes over an RDMA link.
pub fn rdma_frames(bytes: &[u8]) {
    crate::link::rdma::receive_anything(bytes);
}

/// Bytes that come in pieces of any size, and then the end.
struct Memory<'a> {
    bytes: Cell<&'a [u8]>,
    /// Sizes of the pieces, over and over again.
    pieces: &'a [u8],
    turn: Cell<usize>,
    /// Never waited for, as there is always something to read.
    socket: UnixStream,
}

impl AsFd for Memory<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection for Memory<'_> {
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let turn = self.turn.replace(self.turn.get().wrapping_add(1));
        let piece = self.pieces.get(turn % self.pieces.len().max(1)).map_or(1, |size| usize::from(*size) + 1);
        let left = self.bytes.get();
        let count = piece.min(left.len()).min(bytes.len());
        bytes[..count].copy_from_slice(&left[..count]);
        self.bytes.set(&left[count..]);
        Ok(count)
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
}

/// Reads frames, however the bytes are cut into pieces: all frames must be the same as those that lie in the bytes.
pub fn frames(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let (pieces, bytes) = bytes.split_at(usize::from(cut).min(bytes.len()));
    let Ok((socket, _other)) = UnixStream::pair() else { return };
    let memory = Memory { bytes: Cell::new(bytes), pieces, turn: Cell::new(0), socket };
    let mut reader = FrameReader::default();
    let by = end_of(std::time::Duration::from_secs(10));
    let mut rest = bytes;
    while let Ok(Some(frame)) = reader.read(&memory, by) {
        assert!(frame.len() <= MAX_FRAME);
        assert_eq!(rest[..4], (frame.len() as u32).to_le_bytes());
        assert!(rest[4..4 + frame.len()] == frame);
        rest = &rest[4 + frame.len()..];
        understand(&frame);
    }
}

/// Reads bytes as each message that there is.
pub fn understand(bytes: &[u8]) {
    check::<wire::Introduction>(bytes);
    check::<wire::Answer>(bytes);
    check::<wire::Report>(bytes);
    check::<wire::Call>(bytes);
    check::<wire::Passage>(bytes);
    check::<wire::Offer>(bytes);
    check::<wire::Mapping>(bytes);
    check::<wire::Survivor>(bytes);
    check::<wire::Go>(bytes);
    crate::link::rdma::understand(bytes);
    if let Some(wire::Shape::Known { edges }) = check(bytes) {
        let edges: Vec<Edge> = edges.into_iter().map(|(a, b, cables)| Edge { a, b, cables }).collect();
        if let Ok(topology) = crate::Topology::from_edges(&[0, 1, 1, 2], &edges) {
            assert!((0..4).all(|rank| topology.hops(0, rank) < 4));
        }
    }
}

/// What can be read can be written and read again.
fn check<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&message).unwrap_or_default();
    assert!(serde_json::from_slice::<T>(&written).is_ok());
    Some(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            super::frames(&bytes);
        }

        #[test]
        fn frames_come_through_in_pieces(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6),
            pieces in proptest::collection::vec(any::<u8>(), 0..5),
        ) {
            let mut bytes = vec![pieces.len() as u8];
            bytes.extend(pieces);
            for body in bodies {
                bytes.extend((body.len() as u32).to_le_bytes());
                bytes.extend(body);
            }
            super::frames(&bytes);
        }

        #[test]
        fn any_json_is_a_message_or_an_error(
            name in "Known|Up|Reached|Bond|Stripe|Passage|Tcp|Open|Refused|Welcome",
            value in "\\{(\"(edges|cables|unreached|rank|to|from|ticket|index|why|generation)\":([0-9]{1,20}|\\[[0-9,\\[\\]]{0,9}\\]|\"x\"),?){0,3}\\}",
        ) {
            super::understand(format!("{{\"{name}\":{value}}}").as_bytes());
        }

        #[test]
        fn any_handshake_without_the_secret_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), whole: bool) {
            let mut bytes = bytes;
            if whole {
                bytes.splice(0..0, *b"\x01ropewalk\x02\x00\x02\x00");
            }
            super::authentication(&bytes);
        }
    }
}
