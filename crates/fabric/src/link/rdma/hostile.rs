//! A link whose other side sends any bytes. For fuzzing and tests only.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut};

use super::frame::{FrameHeader, HEADER_BYTES};
use super::link::RdmaLink;
use super::rail::{Rail, Session, Slots};
use super::wire::{Event, Lane, RailShape, Wire};
use crate::error::Cause;
use crate::link::Link;

const SESSION: Session = Session { generation: 7, number: 0x0102_0304 };

struct HostileSlot(Vec<u8>);

impl Deref for HostileSlot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for HostileSlot {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Brings messages that were made up beforehand, as long as receives are posted for them.
struct HostileWire {
    messages: VecDeque<(Lane, Vec<u8>)>,
    posted: [VecDeque<HostileSlot>; 2],
    sent: VecDeque<(Lane, HostileSlot)>,
}

impl Wire for HostileWire {
    type Slot = HostileSlot;

    fn post_send(&mut self, lane: Lane, slot: HostileSlot, length: usize) -> Result<(), Cause> {
        assert!(FrameHeader::read(&slot[..length], false).is_ok(), "this side sent what is no frame");
        self.sent.push_back((lane, slot));
        Ok(())
    }

    fn post_receive(&mut self, lane: Lane, slot: HostileSlot) -> Result<(), Cause> {
        self.posted[lane as usize].push_back(slot);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event<HostileSlot>>, Cause> {
        if let Some((lane, slot)) = self.sent.pop_front() {
            return Ok(Some(Event::Sent(lane, slot)));
        }
        let Some((lane, message)) = self.messages.pop_front() else { return Ok(None) };
        let Some(mut slot) = self.posted[lane as usize].pop_front() else { return Err(Cause::Closed) };
        let length = message.len().min(slot.len());
        slot[..length].copy_from_slice(&message[..length]);
        Ok(Some(Event::Received(lane, slot, length)))
    }
}

/// Cuts bytes into messages: a byte that says how, a byte for the length, and so many bytes. What says so gets the right
/// session, or the right number in its lane too, as otherwise hardly any would get far.
fn messages(mut bytes: &[u8]) -> VecDeque<(Lane, Vec<u8>)> {
    let mut messages = VecDeque::new();
    let mut numbers = [0u32; 2];
    while let Some(([how, length], rest)) = bytes.split_first_chunk() {
        let lane = Lane::BOTH[usize::from(how & 1)];
        let (message, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        let mut message = message.to_vec();
        if how & 2 != 0 && message.len() >= HEADER_BYTES {
            message[4..8].copy_from_slice(&SESSION.number.to_le_bytes());
            message[8..12].copy_from_slice(&SESSION.generation.to_le_bytes());
            message[13..16].copy_from_slice(&[0, 0x77, 0x52]);
            if how & 4 != 0 {
                message[16..20].copy_from_slice(&numbers[lane as usize].to_le_bytes());
                numbers[lane as usize] += 1;
            }
            if how & 8 != 0 {
                message[28..HEADER_BYTES].fill(0);
            }
        }
        messages.push_back((lane, message));
        bytes = rest;
    }
    messages
}

/// Receives whatever comes, and sends a little. Ends with bytes or an error, and never with more than was sent.
pub(crate) fn receive_anything(bytes: &[u8]) {
    let messages = messages(bytes);
    let most: usize = messages.iter().map(|(_, message)| message.len()).sum();
    let shape = RailShape::RELIABLE;
    let slots = |count: usize, bytes| (0..count).map(|_| HostileSlot(vec![0; bytes])).collect::<Vec<_>>();
    let slots = Slots {
        send: shape.lanes.map(|lane| slots(lane.sends, lane.bytes)),
        receive: shape.lanes.map(|lane| slots(lane.receives(), lane.bytes)),
    };
    let wire = HostileWire { messages, posted: Default::default(), sent: VecDeque::new() };
    let Ok(rail) = Rail::new(wire, shape, SESSION, slots) else { return };
    let mut link = RdmaLink::new(vec![rail], Vec::new());
    let mut target = [0; 100];
    let mut received = 0;
    // Each round takes in what is there, so that a few are more than enough.
    for _ in 0..20 {
        let _ = link.try_send(&[IoSlice::new(b"hello")]);
        while let Ok(count @ 1..) = link.try_recv(&mut [IoSliceMut::new(&mut target)]) {
            received += count;
        }
    }
    assert!(received <= most, "{received} bytes out of {most}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_messages_end_in_bytes_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            super::receive_anything(&bytes);
        }

        #[test]
        fn nearly_right_frames_do_too(
            frames in prop::collection::vec((0u8..16, 1u8..5, any::<[u8; 24]>(), 0u8..60), 0..30),
        ) {
            let mut bytes = Vec::new();
            for (how, kind, rest, length) in frames {
                bytes.extend([how | 2, 40 + length]);
                bytes.extend([0; 12]);
                bytes.extend([kind, 0, 0, 0]);
                bytes.extend(rest);
                bytes.extend(vec![9; usize::from(length)]);
            }
            super::receive_anything(&bytes);
        }
    }
}
