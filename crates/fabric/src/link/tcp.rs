//! A link over TCP: one or more connections, over which the bytes are dealt out in turn.
//!
//! Byte streams know no messages, so neither do the connections: of `n` connections, number `k mod n` carries the `k`-th
//! [`CHUNK_BYTES`] of the stream. Both sides count, so that nothing has to be said about it, and a small message
//! mostly stays in one piece. Several connections bring several cables to bear, and several of the processor's cores in
//! the kernel.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::{Cable, Interest, Link, Transport, Watched};
use crate::channel::Channel;
use crate::error::Cause;

/// The bytes that go to one connection before it is the next one's turn.
const CHUNK_BYTES: u64 = 64 << 10;
/// The parts of one call that are looked at before what they hold has been moved.
const PARTS_MAX: usize = 8;

/// The connections are non-blocking and without delays; they may be encrypted, all or none.
pub(crate) struct TcpLink {
    streams: Vec<Channel>,
    /// Bytes ever sent.
    sent: u64,
    /// Bytes ever received.
    received: u64,
}

impl TcpLink {
    /// Both sides must give corresponding connections the same place. There must be at least one.
    pub(crate) fn new(streams: Vec<Channel>) -> Self {
        debug_assert!(!streams.is_empty());
        Self { streams, sent: 0, received: 0 }
    }

    /// The connection whose turn it is at a position of the stream, and how many bytes are left of its turn.
    fn turn(&self, position: u64) -> (&Channel, usize) {
        let count = self.streams.len() as u64;
        if count == 1 {
            return (&self.streams[0], usize::MAX);
        }
        let index = (position / CHUNK_BYTES % count) as usize;
        (&self.streams[index], (CHUNK_BYTES - position % CHUNK_BYTES) as usize)
    }
}

impl Link for TcpLink {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        let start = self.sent;
        loop {
            let (stream, room) = self.turn(self.sent);
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            let (count, wanted) = select(parts, (self.sent - start) as usize, room, &mut slices);
            if wanted == 0 {
                return Ok((self.sent - start) as usize);
            }
            let taken = moved(stream.send(&slices[..count]))?;
            self.sent += taken as u64;
            if taken < wanted {
                return Ok((self.sent - start) as usize);
            }
        }
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        let start = self.received;
        loop {
            let (stream, room) = self.turn(self.received);
            let mut slices: [IoSliceMut<'_>; PARTS_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let (count, wanted) = select_mut(parts, (self.received - start) as usize, room, &mut slices);
            if wanted == 0 {
                return Ok((self.received - start) as usize);
            }
            let taken = match stream.recv(&mut slices[..count]) {
                // What came before the end is to be had first.
                Ok(0) if self.received > start => 0,
                Ok(0) => return Err(Cause::Closed),
                result => moved(result)?,
            };
            self.received += taken as u64;
            if taken < wanted {
                return Ok((self.received - start) as usize);
            }
        }
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        self.turn(self.received).0.has_spoken()
    }

    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause> {
        let mut watched = Watched::new();
        self.watch(interest, &mut watched);
        watched.wait(at_most)
    }

    fn watch<'a>(&'a self, interest: Interest, sockets: &mut Watched<'a>) {
        // The end of the connection shows on each of them, asked for or not.
        if interest.receive || !interest.send {
            let flags = if interest.receive { PollFlags::IN } else { PollFlags::empty() };
            sockets.add(self.turn(self.received).0.as_fd(), flags);
        }
        if interest.send {
            sockets.add(self.turn(self.sent).0.as_fd(), PollFlags::OUT);
        }
    }

    fn cables(&self) -> Vec<Cable> {
        let ends = self.streams.iter().map(|stream| Some((stream.local_addr().ok()?, stream.peer_addr().ok()?)));
        let mut cables: Vec<_> =
            ends.flatten().map(|(local, remote)| Cable { local: local.ip(), remote: remote.ip() }).collect();
        cables.sort_unstable();
        cables.dedup();
        cables
    }

    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    #[cfg(target_os = "linux")]
    fn counters(&self) -> super::LinkCounters {
        let ends = self.streams.iter().filter_map(|stream| Some((stream.local_addr().ok()?, stream.peer_addr().ok()?)));
        let retries = ends.filter_map(|(local, remote)| super::tcp_statistics::retransmitted(local, remote)).sum();
        super::LinkCounters { retries, ..Default::default() }
    }

    fn is_encrypted(&self) -> bool {
        self.streams.iter().all(Channel::is_encrypted)
    }
}

/// The result of a call on a socket, where there being nothing to do is no error.
fn moved(result: io::Result<usize>) -> Result<usize, Cause> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Puts what follows the first `skip` bytes of `parts`, at most `room` bytes, into `slices`. Returns the number of
/// slices and of bytes.
fn select<'a>(
    parts: &'a [IoSlice<'_>],
    mut skip: usize,
    room: usize,
    slices: &mut [IoSlice<'a>; PARTS_MAX],
) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for part in parts {
        let (from, to) = window(part.len(), &mut skip, room - bytes);
        if from < to {
            let Some(slice) = slices.get_mut(count) else { break };
            *slice = IoSlice::new(&part[from..to]);
            count += 1;
            bytes += to - from;
        }
    }
    (count, bytes)
}

/// As [`select`], for bytes to be received.
fn select_mut<'a>(
    parts: &'a mut [IoSliceMut<'_>],
    mut skip: usize,
    room: usize,
    slices: &mut [IoSliceMut<'a>; PARTS_MAX],
) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for part in parts {
        let (from, to) = window(part.len(), &mut skip, room - bytes);
        if from < to {
            let Some(slice) = slices.get_mut(count) else { break };
            *slice = IoSliceMut::new(&mut part[from..to]);
            count += 1;
            bytes += to - from;
        }
    }
    (count, bytes)
}

/// Which bytes of a part of `length` bytes are wanted, after what is still to be skipped.
fn window(length: usize, skip: &mut usize, room: usize) -> (usize, usize) {
    let from = (*skip).min(length);
    *skip -= from;
    (from, length.min(from.saturating_add(room)))
}
