//! One connection between two ports: credits, notes, and frames in the order of their lanes.
//!
//! The receiver of a lane has a receive posted for each piece and each note that can be on the way. A piece takes a credit
//! of its sender, which gets it back when the receiver says that it has consumed it: every frame that goes the other way
//! says so, and a note when there is none. Notes are taken at once, wherever the receiver is in the stream, so that
//! they have a small number of receives of their own and need no memory. So no message ever meets a lane without a
//! receive, which would end an unreliable connection, and no side waits for one that waits for it.
//!
//! All frames of a lane are numbered. Lanes keep their order, so that a gap means that a frame got lost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::frame::{FrameError, FrameHeader, FrameKind, HEADER_BYTES, ahead};
use super::wire::{Event, Lane, LaneShape, RailShape, Wire};
use crate::error::Cause;

/// Notes of each lane that probes leave free.
const NOTES_KEPT: [u16; 2] = [4, 0];
/// How much later than a word about it a long message may come.
const BULK_PATIENCE: Duration = Duration::from_secs(1);
/// The other side is told when this part of a lane's pieces has been consumed. So a sender finds most of a lane free when
/// all is consumed, and notes suffice: those for one lane leave at least one for the other.
const TELL_PART: u32 = 6;
/// Events that are looked at in one go.
const EVENTS_MAX: usize = 64;

/// Which connection a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) generation: u32,
    /// Random, and the same on both sides.
    pub(crate) number: u32,
}

/// A piece of the stream that has come.
pub(crate) struct Arrival<S> {
    slot: S,
    /// Its number in the stream.
    pub(crate) piece: u32,
    /// The part of the slot that has not been consumed.
    at: usize,
    end: usize,
}

impl<S: std::ops::Deref<Target = [u8]>> Arrival<S> {
    /// What has not been consumed.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.slot[self.at..self.end]
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.at = self.end.min(self.at + count);
    }
}

/// The state of one lane in both directions.
struct Traffic<S> {
    shape: LaneShape,
    /// Memory to send from.
    free: Vec<S>,
    frames_sent: u32,
    pieces_sent: u32,
    /// Pieces that the other side has consumed.
    pieces_freed: u32,
    notes_sent: u16,
    /// Notes that the other side has received.
    notes_freed: u16,
    frames_received: u32,
    /// Pieces that have come and are not consumed, in order.
    arrived: VecDeque<Arrival<S>>,
    consumed: u32,
    /// What the other side has been told of it.
    consumed_told: u32,
    notes_received: u16,
}

impl<S> Traffic<S> {
    fn new(shape: LaneShape, free: Vec<S>) -> Self {
        Self {
            shape,
            free,
            frames_sent: 0,
            pieces_sent: 0,
            pieces_freed: 0,
            notes_sent: 0,
            notes_freed: 0,
            frames_received: 0,
            arrived: VecDeque::with_capacity(shape.receives()),
            consumed: 0,
            consumed_told: 0,
            notes_received: 0,
        }
    }

    fn pieces_out(&self) -> u32 {
        self.pieces_sent.wrapping_sub(self.pieces_freed)
    }

    fn notes_out(&self) -> u16 {
        self.notes_sent.wrapping_sub(self.notes_freed)
    }

    /// Believes what the other side says it has consumed, if it can be. An older word than the last one is no lie: lanes
    /// overtake each other.
    fn acknowledge(&mut self, consumed: u32, notes: u16) -> Result<(), Cause> {
        if let Some(more) = ahead(self.pieces_freed, consumed) {
            if more > self.pieces_out() {
                return Err(Cause::corrupt(format!("it consumed {more} pieces of {} sent", self.pieces_out())));
            }
            self.pieces_freed = consumed;
        }
        let more = notes.wrapping_sub(self.notes_freed);
        if more <= u16::MAX / 2 {
            if more > self.notes_out() {
                return Err(Cause::corrupt(format!("it received {more} notes of {} sent", self.notes_out())));
            }
            self.notes_freed = notes;
        }
        Ok(())
    }
}

/// One connection with its lanes.
pub(crate) struct Rail<W: Wire> {
    wire: W,
    shape: RailShape,
    session: Session,
    lanes: [Traffic<W::Slot>; 2],
    /// The other side wants a note.
    note_wanted: bool,
    /// The number of pieces in the stream, when the other side has said goodbye.
    pub(crate) ends_at: Option<u32>,
    /// Frames of other connections or generations that were dropped.
    pub(crate) stale_frames: u64,
    /// Probes that have come, by lane.
    pub(crate) probed: [bool; 2],
    /// Frames of the bulk lane that have been sent, by the word of a probe of the other lane, and when that came.
    bulk_due: Option<(u32, Instant)>,
}

/// Where in memory the pieces of a rail live.
pub(crate) struct Slots<S> {
    /// By lane; of each what its shape says.
    pub(crate) send: [Vec<S>; 2],
    pub(crate) receive: [Vec<S>; 2],
}

impl<W: Wire> Rail<W> {
    /// Posts all receives. The other side may send once it knows that this has happened.
    pub(crate) fn new(mut wire: W, shape: RailShape, session: Session, slots: Slots<W::Slot>) -> Result<Self, Cause> {
        for (lane, slots) in Lane::BOTH.into_iter().zip(slots.receive) {
            for slot in slots {
                wire.post_receive(lane, slot)?;
            }
        }
        let [small, bulk] = slots.send;
        let lanes = [Traffic::new(shape.lanes[0], small), Traffic::new(shape.lanes[1], bulk)];
        let (note_wanted, probed) = (false, [false; 2]);
        Ok(Self { wire, shape, session, lanes, note_wanted, ends_at: None, stale_frames: 0, probed, bulk_due: None })
    }

    pub(crate) fn shape(&self) -> &RailShape {
        &self.shape
    }

    /// Whether a piece can be sent.
    pub(crate) fn has_room(&self, lane: Lane) -> bool {
        let traffic = &self.lanes[lane as usize];
        traffic.pieces_out() < traffic.shape.pieces && !traffic.free.is_empty()
    }

    /// The most bytes of the stream that one piece has.
    pub(crate) fn piece_bytes_max(&self, lane: Lane) -> usize {
        self.shape.lanes[lane as usize].bytes - HEADER_BYTES
    }

    /// Sends the piece with this number, which `fill` writes to where it is told and returns the length of. There must be
    /// room.
    pub(crate) fn send_piece(
        &mut self,
        lane: Lane,
        piece: u32,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), Cause> {
        self.lanes[lane as usize].pieces_sent = self.lanes[lane as usize].pieces_sent.wrapping_add(1);
        self.send(lane, FrameKind::Data, piece, fill)
    }

    /// Sends a frame that is no piece, if one more may be on the way. `piece` is what a goodbye says.
    pub(crate) fn send_note(&mut self, lane: Lane, kind: FrameKind, piece: u32) -> Result<bool, Cause> {
        let traffic = &mut self.lanes[lane as usize];
        if traffic.notes_out() >= traffic.shape.notes || traffic.free.is_empty() {
            return Ok(false);
        }
        traffic.notes_sent = traffic.notes_sent.wrapping_add(1);
        self.send(lane, kind, piece, |_| 0)?;
        Ok(true)
    }

    fn send(
        &mut self,
        lane: Lane,
        kind: FrameKind,
        piece: u32,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), Cause> {
        let consumed = [self.lanes[0].consumed, self.lanes[1].consumed];
        let notes = [self.lanes[0].notes_received, self.lanes[1].notes_received];
        let Session { generation, number: session } = self.session;
        let traffic = &mut self.lanes[lane as usize];
        let Some(mut slot) = traffic.free.pop() else {
            return Err(Cause::corrupt("a frame without memory to send it from"));
        };
        let length = fill(&mut slot[HEADER_BYTES..]);
        let number = traffic.frames_sent;
        let header = FrameHeader { session, generation, kind, number, piece, length: length as u32, consumed, notes };
        header.write(&mut slot, self.shape.unreliable);
        traffic.frames_sent = number.wrapping_add(1);
        // The small lane's messages are one unit long, whatever they hold.
        let whole = self.shape.full_length && lane == Lane::Bulk || kind == FrameKind::Probe;
        let bytes = if whole { slot.len() } else { HEADER_BYTES + length };
        self.wire.post_send(lane, slot, bytes)?;
        for lane in &mut self.lanes {
            lane.consumed_told = lane.consumed;
        }
        self.note_wanted = false;
        Ok(())
    }

    /// Takes in what has happened. Returns whether something has.
    pub(crate) fn poll(&mut self) -> Result<bool, Cause> {
        if let Some((due, since)) = self.bulk_due {
            if ahead(self.lanes[Lane::Bulk as usize].frames_received, due).is_none_or(|missing| missing == 0) {
                self.bulk_due = None;
            } else if since.elapsed() > BULK_PATIENCE {
                return Err(Cause::Damaged(format!("frames of the bulk lane up to number {due} did not come")));
            }
        }
        for count in 0..EVENTS_MAX {
            match self.wire.poll()? {
                None => return Ok(count > 0),
                Some(Event::Sent(lane, slot)) => self.lanes[lane as usize].free.push(slot),
                Some(Event::Received(lane, slot, length)) => self.take_in(lane, slot, length)?,
            }
        }
        Ok(true)
    }

    fn take_in(&mut self, lane: Lane, slot: W::Slot, length: usize) -> Result<(), Cause> {
        let frame = slot.get(..length).unwrap_or(&slot);
        let header = FrameHeader::read(frame, self.shape.unreliable).map_err(|error| match error {
            FrameError::Checksum => Cause::Damaged(error.to_string()),
            _ => Cause::corrupt(error.to_string()),
        })?;
        if (header.generation, header.session) != (self.session.generation, self.session.number) {
            let newer = ahead(self.session.generation, header.generation);
            if newer.is_some_and(|newer| newer > 0) {
                return Err(Cause::corrupt(format!("a frame of the later generation {}", header.generation)));
            }
            self.stale_frames += 1;
            return self.wire.post_receive(lane, slot);
        }
        for (traffic, (consumed, notes)) in self.lanes.iter_mut().zip(header.consumed.into_iter().zip(header.notes)) {
            traffic.acknowledge(consumed, notes)?;
        }
        let traffic = &mut self.lanes[lane as usize];
        let expected = traffic.frames_received;
        if header.number != expected {
            let (number, kind) = (header.number, if lane == Lane::Small { "small" } else { "bulk" });
            return Err(Cause::Damaged(format!("frame {number} of the {kind} lane came where {expected} was due")));
        }
        traffic.frames_received = expected.wrapping_add(1);
        if header.kind == FrameKind::Data {
            if traffic.arrived.len() >= traffic.shape.pieces as usize || header.length == 0 {
                return Err(Cause::corrupt("a piece without bytes, or more of them than there is room for"));
            }
            let (at, end) = (HEADER_BYTES, HEADER_BYTES + header.length as usize);
            traffic.arrived.push_back(Arrival { slot, piece: header.piece, at, end });
            return Ok(());
        }
        traffic.notes_received = traffic.notes_received.wrapping_add(1);
        match header.kind {
            FrameKind::Probe => {
                self.note_wanted = true;
                self.probed[lane as usize] = true;
                self.bulk_due.get_or_insert_with(|| (header.piece, Instant::now()));
            }
            FrameKind::Goodbye => self.ends_at = Some(header.piece),
            FrameKind::Data | FrameKind::Note => {}
        }
        self.wire.post_receive(lane, slot)
    }

    /// The oldest piece of a lane that is not consumed.
    pub(crate) fn oldest(&mut self, lane: Lane) -> Option<&mut Arrival<W::Slot>> {
        self.lanes[lane as usize].arrived.front_mut()
    }

    /// Ends the oldest piece of a lane, and makes room for another.
    pub(crate) fn release(&mut self, lane: Lane) -> Result<(), Cause> {
        let traffic = &mut self.lanes[lane as usize];
        let Some(arrival) = traffic.arrived.pop_front() else { return Ok(()) };
        traffic.consumed = traffic.consumed.wrapping_add(1);
        self.wire.post_receive(lane, arrival.slot)
    }

    /// Tells the other side what was consumed, if it should know and no piece has said so.
    pub(crate) fn tell(&mut self) -> Result<(), Cause> {
        let due = |traffic: &Traffic<W::Slot>| {
            traffic.consumed.wrapping_sub(traffic.consumed_told) >= (traffic.shape.pieces / TELL_PART).max(1)
        };
        if self.note_wanted || self.lanes.iter().any(due) {
            self.send_note(Lane::Small, FrameKind::Note, 0)?;
        }
        Ok(())
    }

    /// Asks for signs where pieces have not been consumed yet: if one of them got lost, the frame after it in its lane
    /// shows. On the small lane it also says how many frames the other one has had, as a message there is long and may get
    /// lost like those before. Notes that tell of room come first.
    pub(crate) fn probe(&mut self) -> Result<(), Cause> {
        let waiting = self.lanes.iter().any(|traffic| traffic.pieces_out() > 0);
        for (lane, kept) in Lane::BOTH.into_iter().zip(NOTES_KEPT) {
            let traffic = &self.lanes[lane as usize];
            if waiting && traffic.notes_out() + kept < traffic.shape.notes {
                let bulk_frames = self.lanes[Lane::Bulk as usize].frames_sent;
                self.send_note(lane, FrameKind::Probe, bulk_frames)?;
            }
        }
        Ok(())
    }

    /// Messages that have not gone out.
    pub(crate) fn sends_out(&self) -> usize {
        self.lanes.iter().map(|traffic| traffic.shape.sends - traffic.free.len()).sum()
    }
}
