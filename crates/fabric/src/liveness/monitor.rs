//! The thread that keeps the lifelines of a fabric.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::watch::{Watch, Wire};
use super::{Health, Timing, Tracker};
use crate::channel::Channel;
use crate::error::FabricError;
use crate::timed::{Connection, timespec};

/// Lifelines take little: a few small buffers.
const STACK_BYTES: usize = 256 << 10;

/// The monitor of a fabric, which ends with it: it says goodbye to the other ranks first.
#[derive(Debug)]
pub(crate) struct Monitor {
    health: Arc<Health>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Keeps `lifelines`, by rank, to ranks that are `hops` cables away.
    pub(crate) fn start(
        health: &Arc<Health>,
        generation: u32,
        lifelines: Vec<Option<Channel>>,
        hops: &[usize],
        timing: Timing,
    ) -> Result<Self, FabricError> {
        let failed = |error| FabricError::io("cannot watch over the other ranks", error);
        let tracker = Tracker::new(health.rank(), hops, timing, Duration::ZERO);
        let watch = Watch::new(Arc::clone(health), tracker, generation, lifelines);
        let bell = health.install_bell().map_err(failed)?;
        let builder = std::thread::Builder::new().name("liveness".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || keep(watch, &bell)).map_err(|error| {
            health.close();
            failed(error)
        })?;
        Ok(Self { health: Arc::clone(health), thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.health.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the liveness monitor of rank {} panicked", self.health.rank());
        }
    }
}

/// Works until the fabric ends.
fn keep(mut watch: Watch<Channel>, bell: &UnixStream) {
    let started = Instant::now();
    // Something may have come along with the handshakes, which sockets do not show.
    let mut ready: Vec<usize> = (0..watch.size()).collect();
    loop {
        if watch.turn(&mut ready, started.elapsed()) {
            return;
        }
        // Who has more to say is heard again at once.
        let now = started.elapsed();
        let at_most = if ready.is_empty() { watch.next_turn(now).saturating_sub(now) } else { Duration::ZERO };
        if let Err(error) = sleep(&watch, bell, at_most, &mut ready) {
            watch.give_up(FabricError::io("cannot watch over the other ranks", error));
            return;
        }
    }
}

/// Sleeps until there is something to do. `ready` gets the ranks whose lifelines have something to read.
fn sleep(watch: &Watch<Channel>, bell: &UnixStream, at_most: Duration, ready: &mut Vec<usize>) -> io::Result<()> {
    let mut sockets = vec![PollFd::new(bell, PollFlags::IN)];
    sockets.extend(watch.open().map(|(_, channel, waits)| {
        let flags = if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(channel.as_fd(), flags)
    }));
    match rustix::event::poll(&mut sockets, Some(&timespec(at_most))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_ready = |socket: &PollFd<'_>| socket.revents().intersects(!PollFlags::OUT);
    for ((rank, ..), socket) in watch.open().zip(&sockets[1..]) {
        if is_ready(socket) && !ready.contains(&rank) {
            ready.push(rank);
        }
    }
    if is_ready(&sockets[0]) {
        // What was rung for lies in the notes.
        let _ = (&*bell).read(&mut [0; 64]);
    }
    Ok(())
}

impl Wire for Channel {
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Connection::receive(self, bytes)
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<usize> {
        Connection::transmit(self, bytes)
    }
}
