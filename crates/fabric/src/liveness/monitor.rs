//! The thread that keeps the lifelines of a fabric.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{Codec, Health, Note, Standing, Timing, Tracker, Trouble};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::timed::{Connection, timespec};

/// Lifelines take little: a few small buffers.
const STACK_BYTES: usize = 256 << 10;
/// Bytes taken from one lifeline at a time; a rank that says more has to wait for its next turn.
const TURN_BYTES: usize = 16 << 10;

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
        let size = lifelines.len();
        let lines = lifelines.into_iter().map(|channel| {
            channel.map(|channel| Line { channel, codec: Codec::new(generation, size), is_mute: false })
        });
        let watch = Watch {
            health: Arc::clone(health),
            tracker: Tracker::new(health.rank(), hops, timing, Duration::ZERO),
            lines: lines.collect(),
            bell: health.install_bell().map_err(failed)?,
            started: Instant::now(),
            published: 0,
        };
        let builder = std::thread::Builder::new().name("liveness".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || watch.run()).map_err(|error| {
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

/// The lifeline to one rank.
struct Line {
    channel: Channel,
    codec: Codec,
    /// Whether nothing can be written any more. What has come may still be read.
    is_mute: bool,
}

struct Watch {
    health: Arc<Health>,
    tracker: Tracker,
    /// By rank; those that have ended are gone.
    lines: Vec<Option<Line>>,
    bell: UnixStream,
    started: Instant,
    /// Verdicts that the data path knows of.
    published: usize,
}

impl Watch {
    fn run(mut self) {
        // Something may have come along with the handshakes, which sockets do not show.
        let mut ready: Vec<usize> = (0..self.lines.len()).collect();
        loop {
            let (notes, closing) = self.health.take_notes();
            ready.retain(|&rank| self.read(rank));
            for note in notes {
                self.take_note(note);
            }
            self.tracker.on_tick(self.health.waiting_for(), self.started.elapsed());
            self.publish();
            if closing {
                self.tracker.say_goodbye();
                self.write_all();
                // What has come and is not read would end the connection before the goodbye was read.
                for rank in 0..self.lines.len() {
                    self.read(rank);
                }
                return;
            }
            self.write_all();
            if let Err(error) = self.sleep(&mut ready) {
                let error = FabricError::io("cannot watch over the other ranks", error);
                tracing::error!("rank {}: {error}", self.health.rank());
                self.health.declare(error);
                return;
            }
        }
    }

    fn take_note(&mut self, note: Note) {
        match note {
            Note::Found(error) => {
                if let Some(trouble) = Trouble::of_error(&error) {
                    self.tracker.on_found(trouble);
                }
            }
            Note::Suspect(rank, cause) => self.tracker.on_broken(rank, cause, self.started.elapsed()),
        }
    }

    /// Reads what has come from a rank. Whether there may be more.
    fn read(&mut self, rank: usize) -> bool {
        let Some(line) = &mut self.lines[rank] else { return false };
        let mut bytes = [0; TURN_BYTES];
        let heard = line.channel.receive(&mut bytes);
        let now = self.started.elapsed();
        let result = match heard {
            Ok(0) => Err(Cause::Closed),
            Ok(count) => {
                line.codec.feed(&bytes[..count]);
                std::iter::from_fn(|| line.codec.next().transpose())
                    .try_for_each(|statement| statement.map(|it| self.tracker.on_statement(rank, it, now)))
                    .map(|()| true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        };
        result.unwrap_or_else(|cause| {
            self.lines[rank] = None;
            self.tracker.on_end(rank, cause, now);
            false
        })
    }

    /// Writes what there is to say, as far as there is room for it.
    fn write_all(&mut self) {
        for (rank, line) in self.lines.iter_mut().enumerate() {
            let outbox = self.tracker.take_outbox(rank);
            let Some(line) = line.as_mut().filter(|line| !line.is_mute) else { continue };
            outbox.iter().for_each(|statement| line.codec.queue(statement));
            line.flush();
        }
    }

    /// Tells the data path what is new.
    fn publish(&mut self) {
        for verdict in &self.tracker.verdicts()[self.published..] {
            let error = verdict.clone().error_at(self.health.rank());
            tracing::debug!("rank {}: {error}", self.health.rank());
            self.health.declare(error);
        }
        self.published = self.tracker.verdicts().len();
        for rank in 0..self.lines.len() {
            let left = self.tracker.standing(rank) == Standing::Left;
            self.health.publish(rank, self.tracker.waiting_for(rank), left);
        }
    }

    /// Sleeps until there is something to do, at once if there is more to read. `ready` gets the ranks whose lifelines have something to read.
    fn sleep(&self, ready: &mut Vec<usize>) -> std::io::Result<()> {
        let now = self.started.elapsed();
        let at_most = if ready.is_empty() { self.tracker.next_tick(now).saturating_sub(now) } else { Duration::ZERO };
        let open = || self.lines.iter().enumerate().filter_map(|(rank, line)| line.as_ref().map(|line| (rank, line)));
        let mut sockets = vec![PollFd::new(&self.bell, PollFlags::IN)];
        sockets.extend(open().map(|(_, line)| PollFd::from_borrowed_fd(line.channel.as_fd(), line.interest())));
        match rustix::event::poll(&mut sockets, Some(&timespec(at_most))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |socket: &PollFd<'_>| socket.revents().intersects(!PollFlags::OUT);
        let new = open().zip(&sockets[1..]).filter(|((rank, _), socket)| is_ready(socket) && !ready.contains(rank));
        let new: Vec<usize> = new.map(|((rank, _), _)| rank).collect();
        ready.extend(new);
        if is_ready(&sockets[0]) {
            // What was rung for lies in the notes.
            let _ = (&self.bell).read(&mut [0; 64]);
        }
        Ok(())
    }
}

impl Line {
    fn interest(&self) -> PollFlags {
        let waits = !self.is_mute && !self.codec.outgoing().is_empty();
        if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    fn flush(&mut self) {
        while !self.codec.outgoing().is_empty() {
            match self.channel.transmit(self.codec.outgoing()) {
                Ok(count) => self.codec.advance(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // What has gone wrong shows when reading.
                Err(_) => {
                    self.is_mute = true;
                    return;
                }
            }
        }
    }
}
