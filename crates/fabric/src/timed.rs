//! Reading and writing of non-blocking sockets with a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::Cause;

/// The longest that anything waits: what a clock can surely count.
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A non-blocking connection.
pub(crate) trait Connection: AsFd {
    /// Fills the front of `bytes` with what has come; 0 at the end of the connection.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Takes what there is room for of `bytes`.
    fn transmit(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl Connection for TcpStream {
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(bytes)
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(bytes)
    }
}

/// The time at which `patience` ends that begins now.
pub(crate) fn end_of(patience: Duration) -> Instant {
    Instant::now() + patience.min(PATIENCE_MAX)
}

/// Waits until the socket is ready or has failed. False when `by` came first.
pub(crate) fn wait_ready(socket: &impl AsFd, flags: PollFlags, by: Instant) -> Result<bool, Cause> {
    let mut sockets = [PollFd::new(socket, flags)];
    loop {
        let left = by.saturating_duration_since(Instant::now());
        match rustix::event::poll(&mut sockets, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A duration as the system's calls take it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Fills `bytes`.
pub(crate) fn read_exact(stream: &impl Connection, mut bytes: &mut [u8], by: Instant) -> Result<(), Cause> {
    let started = Instant::now();
    while !bytes.is_empty() {
        match stream.receive(bytes) {
            Ok(0) => return Err(Cause::Closed),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !wait_ready(stream, PollFlags::IN, by)? {
                    return Err(Cause::Silent(started.elapsed()));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes all of `bytes`.
pub(crate) fn write_all(stream: &impl Connection, mut bytes: &[u8], by: Instant) -> Result<(), Cause> {
    let started = Instant::now();
    while !bytes.is_empty() {
        match stream.transmit(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !wait_ready(stream, PollFlags::OUT, by)? {
                    return Err(Cause::Silent(started.elapsed()));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
