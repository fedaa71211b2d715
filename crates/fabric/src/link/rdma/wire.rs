//! What a rail asks of a connection between two ports, so that it can be tried without any.

use std::ops::DerefMut;

use crate::error::Cause;

/// The two kinds of queue pairs that a rail has. Messages of a lane keep their order, those of different lanes do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// For what is short, and for notes.
    Small = 0,
    /// For what is long.
    Bulk = 1,
}

impl Lane {
    pub(crate) const BOTH: [Self; 2] = [Self::Small, Self::Bulk];
}

/// What has happened on a connection.
#[derive(Debug)]
pub(crate) enum Event<S> {
    /// A message has gone out; its memory is free again.
    Sent(Lane, S),
    /// A message of so many bytes has come.
    Received(Lane, S, usize),
}

/// A connection between two ports, with two lanes in each direction.
pub(crate) trait Wire: Send {
    /// Memory that the port reads and writes.
    type Slot: DerefMut<Target = [u8]> + Send;

    /// Hands over a slot whose first `length` bytes are to be sent.
    fn post_send(&mut self, lane: Lane, slot: Self::Slot, length: usize) -> Result<(), Cause>;

    /// Hands over a slot to receive one message into.
    fn post_receive(&mut self, lane: Lane, slot: Self::Slot) -> Result<(), Cause>;

    /// The next thing that has happened, if any.
    fn poll(&mut self) -> Result<Option<Event<Self::Slot>>, Cause>;
}

/// The messages of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneShape {
    /// Bytes of the longest message.
    pub(crate) bytes: usize,
    /// Pieces of the stream that can be on the way or unread.
    pub(crate) pieces: u32,
    /// Notes that can be on the way.
    pub(crate) notes: u16,
    /// Messages that the port can be at work on.
    pub(crate) sends: usize,
}

impl LaneShape {
    /// Receives that are always posted, but for pieces that wait to be consumed.
    pub(crate) fn receives(&self) -> usize {
        self.pieces as usize + usize::from(self.notes)
    }
}

/// How a rail uses its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RailShape {
    /// By lane.
    pub(crate) lanes: [LaneShape; 2],
    /// Whether messages may get lost or damaged, so that frames carry checksums and losses are looked for.
    pub(crate) unreliable: bool,
    /// Whether a message must have exactly as many units of 4 KiB as the receive that was posted for it.
    pub(crate) full_length: bool,
    /// Longer rests of a message travel in the bulk lane.
    pub(crate) small_bytes_max: usize,
}

impl RailShape {
    /// For reliable connections.
    pub(crate) const RELIABLE: Self = Self {
        lanes: [
            LaneShape { bytes: 4096, pieces: 60, notes: 8, sends: 64 },
            LaneShape { bytes: 64 << 10, pieces: 15, notes: 1, sends: 16 },
        ],
        unreliable: false,
        full_length: false,
        small_bytes_max: 4096 - super::frame::HEADER_BYTES,
    };

    /// For unreliable ones under Apple's limits: of the 1000 frames of 4 KiB that a port has, each link takes 132 for
    /// receives and at most 64 for sends, so that the five links that ten queue pairs make have room.
    pub(crate) const UNRELIABLE: Self = Self {
        lanes: [
            LaneShape { bytes: 4096, pieces: 60, notes: 8, sends: 16 },
            LaneShape { bytes: 64 << 10, pieces: 3, notes: 1, sends: 3 },
        ],
        unreliable: true,
        full_length: true,
        // Half of what a bulk message always takes.
        small_bytes_max: 32 << 10,
    };
}

#[cfg(test)]
mod tests {
    use verbs::{Profile, frames_of};

    use super::*;

    #[test]
    fn five_links_fit_a_port() {
        let frames = |lane: &LaneShape| (lane.receives() + lane.sends) * frames_of(lane.bytes);
        let frames: usize = RailShape::UNRELIABLE.lanes.iter().map(frames).sum();
        let links = Profile::QUEUE_PAIRS_MAX as usize / 2;
        assert!(links * frames <= Profile::PORT_FRAMES_MAX as usize, "{frames} frames a link");
    }
}
