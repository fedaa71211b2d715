//! The ends of simulated connections, as data link and as lifeline.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;

use super::world::{Line, PipeId, Shared, lock};
use crate::error::Cause;
use crate::link::{Interest, Link, Transport, Watched};
use crate::liveness::Wire;

/// One end of a connection. The other end finds out when it is dropped.
pub(super) struct End {
    world: Shared,
    outgoing: PipeId,
    incoming: PipeId,
}

impl End {
    /// The end of `own` towards `other`, through the processes `via`, in the order from `own`.
    pub(super) fn open(world: &Shared, session: u64, line: Line, own: usize, other: usize, via: &[usize]) -> Self {
        let back: Vec<usize> = via.iter().rev().copied().collect();
        let mut locked = lock(world);
        let outgoing = locked.pipe(session, line, own, other, via);
        let incoming = locked.pipe(session, line, other, own, &back);
        drop(locked);
        Self { world: world.clone(), outgoing, incoming }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A test that has failed already is not to fail once more.
        if let Ok(mut world) = self.world.lock() {
            world.close(self.outgoing, self.incoming);
        }
    }
}

impl Link for End {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        let bytes = parts.iter().flat_map(|part| part.iter());
        lock(&self.world).write(self.outgoing, bytes).ok_or(Cause::Closed)
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        let most = parts.iter().map(|part| part.len()).sum();
        let bytes = lock(&self.world).read(self.incoming, most).ok_or(Cause::Closed)?;
        let mut rest = &bytes[..];
        for part in parts {
            let (now, later) = rest.split_at(rest.len().min(part.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(bytes.len())
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        lock(&self.world).is_readable(self.incoming).ok_or(Cause::Closed)
    }

    fn rest(&mut self, _interest: Interest, _at_most: Duration) -> Result<bool, Cause> {
        unreachable!("nobody sleeps in a simulation")
    }

    fn watch<'a>(&'a self, _interest: Interest, _sockets: &mut Watched<'a>) {}

    fn transport(&self) -> Transport {
        Transport::Auto
    }
}

impl Wire for End {
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match lock(&self.world).read(self.incoming, bytes.len()) {
            None => Ok(0),
            Some(came) if came.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Some(came) => {
                bytes[..came.len()].copy_from_slice(&came);
                Ok(came.len())
            }
        }
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<usize> {
        match lock(&self.world).write(self.outgoing, bytes.iter()) {
            None => Err(ErrorKind::BrokenPipe.into()),
            Some(0) => Err(ErrorKind::WouldBlock.into()),
            Some(count) => Ok(count),
        }
    }
}
