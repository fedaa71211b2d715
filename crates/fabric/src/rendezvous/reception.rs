//! Listeners whose visitors are each greeted in a thread of their own, so that a slow, silent or hostile stranger
//! delays nobody.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::coordinator::MAX_RANKS;
use crate::error::FabricError;
use crate::timed::{end_of, timespec};

/// A visitor that has not introduced itself by then is shown out.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// More visitors than this at a time are turned away. Each rank of the largest group may be there twice: with the
/// connection over which it makes a link, and with one more that the link needs.
const VISITORS_MAX: usize = 4 * MAX_RANKS;
/// How long the listener goes unwatched while greetings are under way, and the other way round.
const GLANCE: Duration = Duration::from_millis(2);
/// Greeting takes little: a few frames and one map.
const STACK_BYTES: usize = 256 << 10;
/// The buffers of a connection in the system, each way, where they can be had.
const BUFFER_BYTES: usize = 4 << 20;

type Greet<T> = dyn Fn(TcpStream, Instant) -> Result<T, FabricError> + Send + Sync;

/// One visitor and what its greeting led to.
pub(crate) struct Visit<T> {
    pub(crate) from: SocketAddr,
    pub(crate) outcome: Result<T, FabricError>,
}

pub(crate) struct Reception<T> {
    listeners: Vec<TcpListener>,
    greet: Arc<Greet<T>>,
    sender: Sender<Visit<T>>,
    receiver: Receiver<Visit<T>>,
    visitors: Arc<AtomicUsize>,
    /// The threads that do something else than to greet.
    employed: Arc<AtomicUsize>,
}

impl<T: Send + 'static> Reception<T> {
    /// `greet` gets a non-blocking connection and the time by which it must be done.
    pub(crate) fn new(
        listeners: Vec<TcpListener>,
        greet: impl Fn(TcpStream, Instant) -> Result<T, FabricError> + Send + Sync + 'static,
    ) -> Result<Self, FabricError> {
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(|error| FabricError::io("cannot set up a listener", error))?;
        }
        let (sender, receiver) = channel();
        Ok(Self {
            listeners,
            greet: Arc::new(greet),
            sender,
            receiver,
            visitors: Arc::default(),
            employed: Arc::default(),
        })
    }

    /// The next visitor whose greeting has ended, well or badly; `None` when there is none at `by`, or when there is
    /// something to read at `also` first.
    pub(crate) fn next(&mut self, by: Instant, also: Option<BorrowedFd<'_>>) -> Result<Option<Visit<T>>, FabricError> {
        loop {
            self.accept_all()?;
            let left = by.saturating_duration_since(Instant::now());
            // Asked before the outcomes are looked at: who is done by then has left its outcome there.
            let busy = self.visitors.load(Ordering::Acquire) + self.employed.load(Ordering::Acquire) > 0;
            let glance = if busy { GLANCE.min(left) } else { Duration::ZERO };
            match self.receiver.recv_timeout(glance) {
                Ok(visit) => return Ok(Some(visit)),
                // The sender cannot be gone, as `self` holds one.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if left.is_zero() {
                return Ok(None);
            }
            if self.is_called(also, if busy { Duration::ZERO } else { left })? {
                return Ok(None);
            }
        }
    }

    /// Waits for visitors, or for something to read at `also`. True if the latter came.
    fn is_called(&self, also: Option<BorrowedFd<'_>>, at_most: Duration) -> Result<bool, FabricError> {
        let sockets = also.into_iter().chain(self.listeners.iter().map(AsFd::as_fd));
        let mut sockets: Vec<_> = sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
        match rustix::event::poll(&mut sockets, Some(&timespec(at_most))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(FabricError::io("cannot wait for connections", error)),
        }
        Ok(also.is_some() && !sockets[0].revents().is_empty())
    }

    /// Does something in a thread of its own, whose outcome comes like that of a visit. `whom` is for messages.
    pub(crate) fn employ(&self, whom: SocketAddr, task: impl FnOnce() -> Result<T, FabricError> + Send + 'static) {
        self.employed.fetch_add(1, Ordering::AcqRel);
        let visitor = Visitor(Arc::clone(&self.employed));
        let sender = self.sender.clone();
        let spawned = std::thread::Builder::new().name("dialer".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            // When the reception has closed meanwhile, nobody cares for the outcome.
            let _ = sender.send(Visit { from: whom, outcome: task() });
            drop(visitor);
        });
        if let Err(error) = spawned {
            let outcome = Err(FabricError::io("cannot start a thread that connects to another rank", error));
            let _ = self.sender.send(Visit { from: whom, outcome });
        }
    }

    fn accept_all(&self) -> Result<(), FabricError> {
        self.listeners.iter().try_for_each(|listener| self.accept_from(listener))
    }

    fn accept_from(&self, listener: &TcpListener) -> Result<(), FabricError> {
        loop {
            match listener.accept() {
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
        if system_allows_buffers() {
            sockopt::set_socket_send_buffer_size(stream, BUFFER_BYTES)?;
            sockopt::set_socket_recv_buffer_size(stream, BUFFER_BYTES)?;
        }
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
        Ok(())
    };
    set().map_err(|error| FabricError::io("cannot set up a connection", error))
}

/// Whether connections can have buffers of [`BUFFER_BYTES`]. What is set ends the system's own choice, which grows with
/// need, so that less must not be set. Only Linux tells its limits in this way; elsewhere the system chooses.
fn system_allows_buffers() -> bool {
    // Looked up once for all connections.
    static ALLOWED: LazyLock<bool> = LazyLock::new(|| {
        let read = |name| std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok();
        let limit = |name| read(name)?.trim().parse::<usize>().ok();
        ["wmem_max", "rmem_max"].into_iter().all(|name| limit(name).is_some_and(|limit| limit >= BUFFER_BYTES))
    });
    *ALLOWED
}
