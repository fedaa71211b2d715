//! A link over one TCP connection.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;

use super::{Interest, Link, Transport};
use crate::error::Cause;
use crate::timed::{end_of, wait_ready};

/// The connection is non-blocking and without delays.
pub(crate) struct TcpLink {
    stream: TcpStream,
}

impl TcpLink {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream }
    }
}

impl Link for TcpLink {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        match self.stream.write_vectored(parts) {
            Ok(count) => Ok(count),
            Err(error) if is_momentary(error.kind()) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        match self.stream.read_vectored(parts) {
            Ok(0) if parts.iter().any(|part| !part.is_empty()) => Err(Cause::Closed),
            Ok(count) => Ok(count),
            Err(error) if is_momentary(error.kind()) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        match self.stream.peek(&mut [0]) {
            Ok(0) => Err(Cause::Closed),
            Ok(_) => Ok(true),
            Err(error) if is_momentary(error.kind()) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause> {
        wait_ready(&self.stream, interest.into(), end_of(at_most))
    }

    fn check(&mut self) {}

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn transport(&self) -> Transport {
        Transport::Tcp
    }
}

impl From<Interest> for PollFlags {
    fn from(interest: Interest) -> Self {
        let mut flags = Self::empty();
        flags.set(Self::IN, interest.receive);
        flags.set(Self::OUT, interest.send);
        flags
    }
}

fn is_momentary(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
