//! Connections that pass through this process: what comes in at one side goes out at the other, unread.
//!
//! A rank between two others that no cable joins carries their connections; a rank at the end of the line carries to the
//! rendezvous what those behind it have to say. One thread serves all of them. It holds nothing back and adds nothing,
//! so that the two ends authenticate each other, and encrypt if they do, as if they were joined by a cable.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::error::FabricError;
use crate::rendezvous::prepare;
use crate::timed::timespec;

/// The most connections that pass through one process.
const PASSAGES_MAX: usize = 1024;
/// What is on its way through, in each direction of a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// How long a relay that ends waits for those that it serves to end, too.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// How long it may then take to pass on what has come in, which is all that it does once something has gone wrong.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// How often a relay that ends looks at its connections.
const LAST_GLANCE: Duration = Duration::from_millis(5);
/// How long it may take to connect onwards for someone who has come to a forwarder.
const ONWARD_PATIENCE: Duration = Duration::from_secs(5);

/// The thread that passes bytes on, and what it shares with those who bring connections. When this is dropped, it goes
/// on until the connections end that pass through it, but not for long: their ends may still need it for a moment.
#[derive(Debug)]
pub(crate) struct Relay {
    counter: Counter,
    thread: Option<JoinHandle<()>>,
}

/// Where connections are handed to a relay.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    shared: Arc<Shared>,
    bell: Arc<UnixStream>,
}

#[derive(Debug, Default)]
struct Shared {
    brought: Mutex<Vec<(TcpStream, TcpStream)>>,
    passages: AtomicUsize,
    closing: AtomicBool,
    /// To let nobody else in.
    full: AtomicBool,
    /// Not to wait for anyone when it closes.
    hasty: AtomicBool,
}

impl Relay {
    /// A relay without connections.
    pub(crate) fn start() -> Result<Self, FabricError> {
        Self::start_with(None)
    }

    /// A relay that also passes on to `target` whoever comes to `listener`.
    pub(crate) fn forward(listener: TcpListener, target: Vec<SocketAddr>) -> Result<Self, FabricError> {
        listener.set_nonblocking(true).map_err(|error| FabricError::io("cannot set up a forwarder", error))?;
        Self::start_with(Some((listener, Arc::from(target))))
    }

    fn start_with(door: Option<(TcpListener, Arc<[SocketAddr]>)>) -> Result<Self, FabricError> {
        let start = || {
            let (bell, hears) = UnixStream::pair()?;
            bell.set_nonblocking(true)?;
            hears.set_nonblocking(true)?;
            let counter = Counter { shared: Arc::default(), bell: Arc::new(bell) };
            let post = Post { counter: counter.clone(), hears, door, passages: Vec::new() };
            let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || post.serve())?;
            Ok(Self { counter, thread: Some(thread) })
        };
        start().map_err(|error: io::Error| FabricError::io("cannot start a relay", error))
    }

    /// Ends without waiting for the connections that pass through it to end.
    pub(crate) fn close_at_once(self) {
        self.counter.shared.hasty.store(true, Ordering::Release);
    }

    /// Lets nobody else in. Who has come stays.
    pub(crate) fn close_door(&self) {
        self.counter.shared.full.store(true, Ordering::Release);
        self.counter.ring();
    }

    /// Where to bring connections.
    pub(crate) fn counter(&self) -> &Counter {
        &self.counter
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.counter.shared.closing.store(true, Ordering::Release);
        self.counter.ring();
        if let Some(thread) = self.thread.take() {
            // A relay that has panicked has closed its connections by that.
            let _ = thread.join();
        }
    }
}

impl Counter {
    /// Has the relay pass bytes between two connections from now on. Both end when one of them does.
    pub(crate) fn join(&self, one: TcpStream, other: TcpStream) -> Result<(), FabricError> {
        self.reserve()?;
        self.bring(one, other);
        Ok(())
    }

    /// Makes sure that there is room for one more connection, which is then brought or released.
    fn reserve(&self) -> Result<(), FabricError> {
        if self.shared.passages.fetch_add(1, Ordering::AcqRel) < PASSAGES_MAX {
            return Ok(());
        }
        self.release();
        Err(FabricError::Invalid(format!("{PASSAGES_MAX} connections pass through this rank already")))
    }

    fn release(&self) {
        self.shared.passages.fetch_sub(1, Ordering::AcqRel);
    }

    fn bring(&self, one: TcpStream, other: TcpStream) {
        self.shared.brought.lock().unwrap_or_else(PoisonError::into_inner).push((one, other));
        self.ring();
    }

    fn ring(&self) {
        // A bell whose line is full is about to be heard anyway.
        let _ = (&*self.bell).write(&[1]);
    }
}

/// What the thread works on.
struct Post {
    counter: Counter,
    hears: UnixStream,
    door: Option<(TcpListener, Arc<[SocketAddr]>)>,
    passages: Vec<Passage>,
}

impl Post {
    fn serve(mut self) {
        let mut last: Option<Instant> = None;
        loop {
            // In this order, so that nothing that was brought before the end is overlooked.
            let closing = self.counter.shared.closing.load(Ordering::Acquire);
            self.take_in();
            let mut moved = false;
            self.passages.retain_mut(|passage| match passage.advance() {
                Ok(Progress::Moved) => {
                    moved = true;
                    true
                }
                Ok(Progress::Waiting) => true,
                Ok(Progress::Done) | Err(_) => {
                    self.counter.release();
                    false
                }
            });
            if closing {
                let last = *last.get_or_insert_with(Instant::now);
                if !moved && self.may_end(last.elapsed()) {
                    return;
                }
                if moved {
                    continue;
                }
            }
            let at_most = last.map(|_| LAST_GLANCE);
            if !moved && let Err(error) = self.sleep(at_most) {
                tracing::error!("a relay ends: {error}");
                return;
            }
        }
    }

    /// Whether it is time to end, this long after the relay was told to.
    fn may_end(&self, since: Duration) -> bool {
        let hasty = self.counter.shared.hasty.load(Ordering::Acquire);
        let needed = if hasty || since >= LAST_PATIENCE {
            self.passages.iter().any(Passage::is_full)
        } else {
            !self.passages.is_empty()
        };
        !needed || since >= LAST_PATIENCE + FLUSH_PATIENCE || hasty && since >= FLUSH_PATIENCE
    }

    /// Takes new connections in.
    fn take_in(&mut self) {
        while matches!((&self.hears).read(&mut [0; 64]), Ok(count) if count > 0) {}
        let brought = std::mem::take(&mut *self.counter.shared.brought.lock().unwrap_or_else(PoisonError::into_inner));
        self.passages.extend(brought.into_iter().map(|(one, other)| Passage::new(one, other)));
        if self.counter.shared.full.load(Ordering::Acquire) {
            self.door = None;
        }
        let Some((listener, target)) = &self.door else { return };
        loop {
            match listener.accept() {
                Ok((stream, from)) => pass_on(&self.counter, stream, from, target),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // These are about the one connection that could not be accepted.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    tracing::warn!("cannot accept connections to pass on: {error}");
                    // What is lacking, such as room for files, does not come back at once.
                    std::thread::sleep(LAST_GLANCE);
                    return;
                }
            }
        }
    }

    fn sleep(&self, at_most: Option<Duration>) -> io::Result<()> {
        let mut sockets = vec![PollFd::new(&self.hears, PollFlags::IN)];
        sockets.extend(self.door.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)));
        for (socket, flags) in self.passages.iter().flat_map(Passage::waits_for) {
            if !flags.is_empty() {
                sockets.push(PollFd::from_borrowed_fd(socket, flags));
            }
        }
        match rustix::event::poll(&mut sockets, at_most.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Connects someone who has come to a forwarder onwards, in a thread of its own.
fn pass_on(counter: &Counter, stream: TcpStream, from: SocketAddr, target: &Arc<[SocketAddr]>) {
    if let Err(error) = counter.reserve() {
        tracing::warn!("turned away {from}: {error}");
        return;
    }
    let (of_thread, target) = (counter.clone(), Arc::clone(target));
    let task = move || match connect_onwards(&stream, &target) {
        Ok(onwards) => of_thread.bring(stream, onwards),
        Err(error) => {
            of_thread.release();
            tracing::warn!("cannot pass {from} on to {target:?}: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("forwarder".to_owned()).spawn(task) {
        counter.release();
        tracing::warn!("turned away {from}: no thread to connect it: {error}");
    }
}

/// Connects to the first address that answers.
fn connect_onwards(stream: &TcpStream, target: &[SocketAddr]) -> Result<TcpStream, FabricError> {
    prepare(stream)?;
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in target {
        match TcpStream::connect_timeout(address, ONWARD_PATIENCE) {
            Ok(onwards) => {
                prepare(&onwards)?;
                return Ok(onwards);
            }
            Err(error) => last = error,
        }
    }
    Err(FabricError::io("cannot connect onwards", last))
}

/// Two connections that are one to those at their ends.
struct Passage {
    ends: [TcpStream; 2],
    /// `flows[i]` goes from `ends[i]` to the other one.
    flows: [Flow; 2],
}

/// What became of an attempt to move bytes.
#[derive(PartialEq, Eq)]
enum Progress {
    Moved,
    Waiting,
    Done,
}

impl Passage {
    fn new(one: TcpStream, other: TcpStream) -> Self {
        Self { ends: [one, other], flows: [Flow::new(), Flow::new()] }
    }

    fn advance(&mut self) -> io::Result<Progress> {
        let [one, other] = &self.ends;
        let [there, back] = &mut self.flows;
        let progress = [there.advance(one, other)?, back.advance(other, one)?];
        Ok(match progress {
            [Progress::Done, Progress::Done] => Progress::Done,
            progress if progress.contains(&Progress::Moved) => Progress::Moved,
            _ => Progress::Waiting,
        })
    }

    /// Whether something that has come in could not go out yet.
    fn is_full(&self) -> bool {
        self.flows.iter().any(Flow::wants_room)
    }

    fn waits_for(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        let flags = |end: usize| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, self.flows[end].wants_bytes());
            flags.set(PollFlags::OUT, self.flows[1 - end].wants_room());
            (self.ends[end].as_fd(), flags)
        };
        [flags(0), flags(1)]
    }
}

/// Bytes on their way in one direction.
struct Flow {
    buffer: Box<[u8]>,
    /// The bytes of the buffer that are still to go out.
    start: usize,
    end: usize,
    /// Nothing more comes in.
    ended: bool,
    /// The other side has been told so.
    closed: bool,
}

impl Flow {
    fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0, ended: false, closed: false }
    }

    fn wants_bytes(&self) -> bool {
        !self.ended && self.start == self.end
    }

    fn wants_room(&self) -> bool {
        self.start < self.end
    }

    fn advance(&mut self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<Progress> {
        if self.closed {
            return Ok(Progress::Done);
        }
        let mut moved = false;
        if self.wants_bytes() {
            match from.read(&mut self.buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => (self.start, self.end, moved) = (0, count, true),
                Err(error) if is_momentary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.wants_room() {
            match to.write(&self.buffer[self.start..self.end]) {
                Ok(count) => (self.start, moved) = (self.start + count, true),
                Err(error) if is_momentary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.ended && !self.wants_room() {
            // The other side may be gone already.
            let _ = to.shutdown(Shutdown::Write);
            self.closed = true;
            return Ok(Progress::Done);
        }
        Ok(if moved { Progress::Moved } else { Progress::Waiting })
    }
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::local_sockets;
    use crate::timed::{end_of, read_exact, write_all};

    fn soon() -> Instant {
        end_of(Duration::from_secs(10))
    }

    /// Bytes in both directions at once, more than fits on the way, and then the end of one side.
    fn check_passage(left: TcpStream, right: TcpStream) {
        let there: Vec<u8> = (0..3_000_000u32).map(|index| (index * 7 % 251) as u8).collect();
        let back: Vec<u8> = there.iter().map(|byte| byte ^ 0x55).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| write_all(&left, &there, soon()).unwrap());
            scope.spawn(|| write_all(&right, &back, soon()).unwrap());
            let reader = scope.spawn(|| {
                let mut came = vec![0; back.len()];
                read_exact(&left, &mut came, soon()).unwrap();
                assert!(came == back);
            });
            let mut came = vec![0; there.len()];
            read_exact(&right, &mut came, soon()).unwrap();
            assert!(came == there);
            reader.join().unwrap();
        });
        drop(left);
        assert!(read_exact(&right, &mut [0], soon()).is_err());
    }

    #[test]
    fn bytes_pass_and_ends_pass_too() {
        let relay = Relay::start().unwrap();
        let passages: Vec<_> = (0..3)
            .map(|_| {
                let ((left, inner), (other, right)) = (local_sockets().unwrap(), local_sockets().unwrap());
                relay.counter().join(inner, other).unwrap();
                (left, right)
            })
            .collect();
        for (left, right) in passages {
            check_passage(left, right);
        }
        let ((left, inner), (other, right)) = (local_sockets().unwrap(), local_sockets().unwrap());
        relay.counter().join(inner, other).unwrap();
        write_all(&left, b"last words", soon()).unwrap();
        let ending = std::thread::spawn(move || drop(relay));
        read_exact(&right, &mut [0; 10], soon()).unwrap();
        check_passage(left, right);
        ending.join().unwrap();
    }

    #[test]
    fn a_relay_in_haste_waits_for_nobody() {
        let relay = Relay::start().unwrap();
        let ((left, inner), (other, right)) = (local_sockets().unwrap(), local_sockets().unwrap());
        relay.counter().join(inner, other).unwrap();
        write_all(&left, b"last words", soon()).unwrap();
        let started = Instant::now();
        relay.close_at_once();
        read_exact(&right, &mut [0; 10], soon()).unwrap();
        assert!(read_exact(&left, &mut [0], soon()).is_err(), "the relay's connections outlive it");
        assert!(started.elapsed() < LAST_PATIENCE);
    }

    #[test]
    fn a_forwarder_leads_to_its_target() {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap();
        let _relay = Relay::forward(door, vec![target.local_addr().unwrap()]).unwrap();
        let left = TcpStream::connect(address).unwrap();
        let (right, _) = target.accept().unwrap();
        prepare(&left).unwrap();
        prepare(&right).unwrap();
        check_passage(left, right);
    }
}
