//! A listener whose visitors are each greeted in a thread of their own, so that a slow, silent or hostile stranger
//! delays nobody.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::error::FabricError;
use crate::timed::{end_of, wait_ready};

/// A visitor that has not introduced itself by then is shown out.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// More visitors than this at a time are turned away.
const VISITORS_MAX: usize = 256;
/// How long the listener goes unwatched while greetings are under way, and the other way round.
const GLANCE: Duration = Duration::from_millis(2);
/// Greeting takes little: a few frames and one map.
const STACK_BYTES: usize = 256 << 10;

type Greet<T> = dyn Fn(TcpStream, Instant) -> Result<T, FabricError> + Send + Sync;

/// One visitor and what its greeting led to.
pub(crate) struct Visit<T> {
    pub(crate) from: SocketAddr,
    pub(crate) outcome: Result<T, FabricError>,
}

pub(crate) struct Reception<T> {
    listener: TcpListener,
    greet: Arc<Greet<T>>,
    sender: Sender<Visit<T>>,
    receiver: Receiver<Visit<T>>,
    visitors: Arc<AtomicUsize>,
}

impl<T: Send + 'static> Reception<T> {
    /// `greet` gets a non-blocking connection and the time by which it must be done.
    pub(crate) fn new(
        listener: TcpListener,
        greet: impl Fn(TcpStream, Instant) -> Result<T, FabricError> + Send + Sync + 'static,
    ) -> Result<Self, FabricError> {
        listener.set_nonblocking(true).map_err(|error| FabricError::io("cannot set up a listener", error))?;
        let (sender, receiver) = channel();
        Ok(Self { listener, greet: Arc::new(greet), sender, receiver, visitors: Arc::default() })
    }

    /// The next visitor whose greeting has ended, well or badly; `None` when there is none at `by`.
    pub(crate) fn next(&mut self, by: Instant) -> Result<Option<Visit<T>>, FabricError> {
        loop {
            self.accept_all()?;
            let left = by.saturating_duration_since(Instant::now());
            let glance = if self.visitors.load(Ordering::Acquire) > 0 { GLANCE.min(left) } else { Duration::ZERO };
            match self.receiver.recv_timeout(glance) {
                Ok(visit) => return Ok(Some(visit)),
                // The sender cannot be gone, as `self` holds one.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if left.is_zero() {
                return Ok(None);
            }
            if self.visitors.load(Ordering::Acquire) == 0 {
                wait_ready(&self.listener, PollFlags::IN, by)
                    .map_err(|cause| FabricError::Handshake { whom: "the listener".to_owned(), cause })?;
            }
        }
    }

    fn accept_all(&self) -> Result<(), FabricError> {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => self.receive(stream, from),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // These are about the one connection that could not be accepted.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => return Err(FabricError::io("cannot accept connections", error)),
            }
        }
    }

    fn receive(&self, stream: TcpStream, from: SocketAddr) {
        if self.visitors.fetch_add(1, Ordering::AcqRel) >= VISITORS_MAX {
            self.visitors.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!("turned away {from}: {VISITORS_MAX} connections are being greeted already");
            return;
        }
        let (greet, sender) = (Arc::clone(&self.greet), self.sender.clone());
        let visitor = Visitor(Arc::clone(&self.visitors));
        let spawned = std::thread::Builder::new().name("greeter".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            let by = end_of(GREETING_PATIENCE);
            let outcome = prepare(&stream).and_then(|()| greet(stream, by));
            // When the reception has closed meanwhile, nobody cares for the outcome.
            let _ = sender.send(Visit { from, outcome });
            drop(visitor);
        });
        if let Err(error) = spawned {
            tracing::warn!("turned away {from}: no thread to greet it: {error}");
        }
    }
}

/// Counts a visitor until it is dropped.
struct Visitor(Arc<AtomicUsize>);

impl Drop for Visitor {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Sets the options that every connection of the fabric has: no delays, no blocking, and an end when the machine at the
/// other side vanishes without a word.
pub(crate) fn prepare(stream: &TcpStream) -> Result<(), FabricError> {
    use rustix::net::sockopt;
    let set = || -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
        Ok(())
    };
    set().map_err(|error| FabricError::io("cannot set up a connection", error))
}
