//! A connection between two processes that have authenticated each other.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Cause;
use crate::rendezvous::address_of;
use crate::timed::Connection;

/// A non-blocking connection. Whoever waits for it must have read, or written, until it would block before: what has
/// come may lie here already, without the socket showing it.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: TcpStream,
}

impl Channel {
    /// A connection as it is.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self { stream }
    }

    /// This side's address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The other side's address for messages.
    pub(crate) fn whom(&self) -> String {
        address_of(&self.stream)
    }

    /// The other side's address.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Whether the other side has said something that has not been read.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(crate) fn has_spoken(&self) -> Result<bool, Cause> {
        match self.stream.peek(&mut [0]) {
            Ok(0) => Err(Cause::Closed),
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the connection at once in both directions.
    pub(crate) fn shut(&self) {
        // A connection that is already closed is all that this can fail with.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Connection for Channel {
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(bytes)
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.stream).write(bytes)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
