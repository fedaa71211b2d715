//! What a monitor does, apart from sleeping: it moves bytes between lifelines and tracker, and news between tracker and
//! data path. Without clock and thread, so that it runs under simulation, too.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use super::{Codec, Health, Note, Tracker, Trouble};
use crate::error::{Cause, FabricError};

/// Bytes taken from one lifeline at a time; a rank that says more has to wait for its next turn.
const TURN_BYTES: usize = 16 << 10;

/// A non-blocking connection that a lifeline is made of.
pub(crate) trait Wire {
    /// Fills the front of `bytes` with what has come; 0 at the end of the connection.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Takes what there is room for of `bytes`.
    fn transmit(&self, bytes: &[u8]) -> io::Result<usize>;
}

/// All lifelines of one rank.
pub(crate) struct Watch<W> {
    health: Arc<Health>,
    tracker: Tracker,
    /// By rank; those that have ended are gone.
    lines: Vec<Option<Line<W>>>,
    /// Verdicts that the data path knows of.
    published: usize,
}

/// The lifeline to one rank.
struct Line<W> {
    wire: W,
    codec: Codec,
    /// Whether nothing can be written any more. What has come may still be read.
    is_mute: bool,
}

impl<W: Wire> Watch<W> {
    /// Watches over the ranks at the other ends of `wires`, by rank.
    pub(crate) fn new(health: Arc<Health>, tracker: Tracker, generation: u32, wires: Vec<Option<W>>) -> Self {
        let size = wires.len();
        let line = |wire: W| Line { wire, codec: Codec::new(generation, size), is_mute: false };
        let lines = wires.into_iter().map(|wire| wire.map(line)).collect();
        Self { health, tracker, lines, published: 0 }
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.lines.len()
    }

    /// Hears what has come from the ranks in `ready`, of which those remain that may have more to say; decides; tells.
    /// True when the fabric ends: the goodbyes have then been said.
    pub(crate) fn turn(&mut self, ready: &mut Vec<usize>, now: Duration) -> bool {
        let (notes, closing) = self.health.take_notes();
        ready.retain(|&rank| self.read(rank, now));
        for note in notes {
            match note {
                Note::Found(error) => Trouble::of_error(&error).into_iter().for_each(|it| self.tracker.on_found(it)),
                Note::Suspect(rank, cause) => self.tracker.on_broken(rank, cause, now),
            }
        }
        self.tracker.on_tick(self.health.waiting_for(), now);
        if closing {
            self.tracker.say_goodbye();
        }
        // The others hear of it before this rank acts upon it.
        self.write_all();
        self.publish(now);
        if closing {
            // What has come and is not read would end the connection before the goodbye was read.
            for rank in 0..self.lines.len() {
                self.read(rank, now);
            }
        }
        closing
    }

    /// When the next turn is due if nothing is heard before.
    pub(crate) fn next_turn(&self, now: Duration) -> Duration {
        self.tracker.next_tick(now)
    }

    /// The lifelines that have not ended, and whether something waits to be written there.
    pub(crate) fn open(&self) -> impl Iterator<Item = (usize, &W, bool)> {
        let lines = self.lines.iter().enumerate();
        lines.filter_map(|(rank, line)| line.as_ref().map(|line| (rank, &line.wire, line.waits())))
    }

    /// This rank cannot watch over the others any more.
    pub(crate) fn give_up(&self, error: FabricError) {
        tracing::error!("rank {}: {error}", self.health.rank());
        self.health.declare(error);
    }

    /// Reads what has come from a rank. Whether there may be more.
    fn read(&mut self, rank: usize, now: Duration) -> bool {
        let Some(line) = &mut self.lines[rank] else { return false };
        let mut bytes = [0; TURN_BYTES];
        let result = match line.wire.receive(&mut bytes) {
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
    fn publish(&mut self, now: Duration) {
        for verdict in &self.tracker.verdicts()[self.published..] {
            let error = verdict.clone().error_at(self.health.rank());
            tracing::debug!("rank {}: {error}", self.health.rank());
            self.health.declare(error);
        }
        self.published = self.tracker.verdicts().len();
        for (rank, standing) in self.tracker.standings(now).into_iter().enumerate() {
            let departed = self.tracker.has_departed(rank, now);
            self.health.publish(rank, self.tracker.waiting_for(rank), standing, departed);
        }
    }
}

impl<W: Wire> Line<W> {
    fn waits(&self) -> bool {
        !self.is_mute && !self.codec.outgoing().is_empty()
    }

    fn flush(&mut self) {
        while !self.codec.outgoing().is_empty() {
            match self.wire.transmit(self.codec.outgoing()) {
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
