//! A connection between two processes that have authenticated each other.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::encryption::Cipher;
use crate::error::Cause;
use crate::rendezvous::address_of;
use crate::timed::Connection;

/// A non-blocking connection, encrypted or not.
///
/// Whoever waits for it must have read, or written, until it would block before: what has come may lie here already,
/// without the socket showing it. Bytes that were not taken must be offered again before any others.
pub(crate) struct Channel {
    stream: TcpStream,
    cipher: Option<Box<Mutex<Cipher>>>,
}

impl Channel {
    /// A connection as it is.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self { stream, cipher: None }
    }

    /// A connection that has been encrypted.
    pub(crate) fn encrypted(stream: TcpStream, cipher: Cipher) -> Self {
        Self { stream, cipher: Some(Box::new(Mutex::new(cipher))) }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// The connection itself, unless it is encrypted.
    pub(crate) fn into_plain(self) -> Result<TcpStream, Self> {
        if self.is_encrypted() { Err(self) } else { Ok(self.stream) }
    }

    fn cipher(&self) -> Option<MutexGuard<'_, Cipher>> {
        // A panic in the middle of a call leaves a connection that fails, as it should.
        self.cipher.as_ref().map(|cipher| cipher.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes what there is room for of `parts`.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.cipher() {
            None => (&self.stream).write_vectored(parts),
            Some(mut cipher) => cipher.send(&self.stream, parts),
        }
    }

    /// Fills `parts` with what has come; 0 at the end of the connection.
    pub(crate) fn recv(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.cipher() {
            None => (&self.stream).read_vectored(parts),
            Some(mut cipher) => cipher.receive(&self.stream, parts),
        }
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
        if let Some(mut cipher) = self.cipher() {
            return cipher.has_come(&self.stream);
        }
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

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("stream", &self.stream).field("encrypted", &self.is_encrypted()).finish()
    }
}

impl Connection for Channel {
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.recv(&mut [IoSliceMut::new(bytes)])
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
