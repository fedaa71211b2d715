//! A [`Wire`] of real ports: two queue pairs with one completion queue, and the memory for both.

use std::net::Ipv4Addr;

use verbs::{
    Completion, CompletionQueue, Gid, MemoryRegion, Mtu, PAGE_BYTES, Profile, ProtectionDomain, QueuePair,
    QueuePairOptions, Reliability, Remote, Retired, Slot,
};

use super::cards::LocalCard;
use super::rail::Slots;
use super::wire::{Event, Lane, RailShape, Wire};
use crate::error::Cause;
use crate::secret::random_bytes;

/// Messages up to this length travel inside their requests, where a device can do so: a port then need not fetch them.
const INLINE_BYTES: usize = 256;

/// What connections are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reliable connections.
    Reliable,
    /// Unreliable ones under Apple's limits.
    Unreliable,
}

impl Mode {
    pub(crate) fn shape(self) -> RailShape {
        match self {
            Self::Reliable => RailShape::RELIABLE,
            Self::Unreliable => RailShape::UNRELIABLE,
        }
    }

    fn profile(self) -> Profile {
        match self {
            Self::Reliable => Profile::native(),
            Self::Unreliable => Profile::Apple,
        }
    }
}

/// A connection between two ports.
pub(crate) struct PortWire {
    /// By lane.
    pairs: [QueuePair; 2],
    queue: CompletionQueue,
    /// The next one last.
    completions: Vec<Completion>,
}

/// How the other side reaches this one's queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) address: Ipv4Addr,
    pub(crate) lid: u16,
    /// Numbers of the queue pairs and of the first packet of each, by lane.
    pub(crate) numbers: [u32; 2],
    pub(crate) first_packets: [u32; 2],
}

/// Queue pairs that wait to be connected.
pub(crate) struct Prepared {
    wire: PortWire,
    slots: Slots<Slot>,
    gid_index: u8,
    ends: Ends,
}

impl Prepared {
    /// Makes queue pairs on a card and registers their memory, before they are connected, as Apple's driver wants it.
    pub(crate) fn new(card: &LocalCard, mode: Mode) -> Result<Self, Cause> {
        let shape = mode.shape();
        let domain = ProtectionDomain::of(&card.device, mode.profile())?;
        let requests = shape.lanes.map(|lane| lane.sends + lane.receives());
        let bytes: usize = shape.lanes.iter().zip(requests).map(|(lane, requests)| requests * lane.bytes).sum();
        let region = MemoryRegion::register(&domain, bytes.next_multiple_of(PAGE_BYTES))?;
        let queue = CompletionQueue::new(&domain, requests.iter().sum())?;
        let pair = |lane: Lane| {
            let reliability = match mode {
                Mode::Reliable => Reliability::Reliable,
                Mode::Unreliable => Reliability::Unreliable,
            };
            let inline_bytes = if mode == Mode::Reliable && lane == Lane::Small { INLINE_BYTES } else { 0 };
            let lane = shape.lanes[lane as usize];
            let (sends, receives) = (lane.sends, lane.receives());
            let options = QueuePairOptions { reliability, sends, receives, message_bytes: lane.bytes, inline_bytes };
            QueuePair::new(&domain, &queue, options)
        };
        let pairs = [pair(Lane::Small)?, pair(Lane::Bulk)?];
        let [(send_small, receive_small), (send_bulk, receive_bulk)] =
            shape.lanes.map(|lane| ((lane.sends, lane.bytes), (lane.receives(), lane.bytes)));
        let [send_small, receive_small, send_bulk, receive_bulk] =
            region.into_slots([send_small, receive_small, send_bulk, receive_bulk])?;
        let slots = Slots { send: [send_small, send_bulk], receive: [receive_small, receive_bulk] };
        let mut first_packets = [0; 2];
        for first in &mut first_packets {
            let bytes = random_bytes::<4>().map_err(|error| Cause::Rdma(error.to_string()))?;
            *first = u32::from_le_bytes(bytes) & verbs::NUMBER_MAX;
        }
        let numbers = [pairs[0].number(), pairs[1].number()];
        let ends = Ends { address: card.card.address, lid: card.lid, numbers, first_packets };
        let wire = PortWire { pairs, queue, completions: Vec::with_capacity(16) };
        Ok(Self { wire, slots, gid_index: card.gid_index, ends })
    }

    pub(crate) fn ends(&self) -> Ends {
        self.ends
    }

    /// Connects with the other side's queue pairs, which have been made.
    pub(crate) fn connect(&mut self, theirs: &Ends, mtu: Mtu) -> Result<(), Cause> {
        for (lane, pair) in self.wire.pairs.iter_mut().enumerate() {
            let remote = Remote {
                gid: Gid::of_address(theirs.address.into()),
                lid: theirs.lid,
                number: theirs.numbers[lane],
                first_packet: theirs.first_packets[lane],
                mtu,
            };
            pair.connect(&remote, self.gid_index)?;
        }
        Ok(())
    }

    /// Makes the queue pairs ready to send, as the other side's are connected.
    pub(crate) fn start(mut self) -> Result<(PortWire, Slots<Slot>), Cause> {
        for (pair, first_packet) in self.wire.pairs.iter_mut().zip(self.ends.first_packets) {
            pair.start(first_packet)?;
        }
        Ok((self.wire, self.slots))
    }
}

impl Wire for PortWire {
    type Slot = Slot;

    fn post_send(&mut self, lane: Lane, slot: Slot, length: usize) -> Result<(), Cause> {
        Ok(self.pairs[lane as usize].post_send(slot, length)?)
    }

    fn post_receive(&mut self, lane: Lane, slot: Slot) -> Result<(), Cause> {
        Ok(self.pairs[lane as usize].post_receive(slot)?)
    }

    fn poll(&mut self) -> Result<Option<Event<Slot>>, Cause> {
        if self.completions.is_empty() {
            if self.queue.poll(&mut self.completions)? == 0 {
                return Ok(None);
            }
            self.completions.reverse();
        }
        let Some(completion) = self.completions.pop() else { return Ok(None) };
        let number = completion.queue_pair();
        let mut lanes = Lane::BOTH.into_iter();
        let Some(lane) = lanes.find(|lane| self.pairs[*lane as usize].number() == number) else {
            return Err(Cause::Rdma(format!("something ended on queue pair {number}, which is not of this link")));
        };
        Ok(Some(match self.pairs[lane as usize].retire(completion)? {
            Retired::Sent(slot) => Event::Sent(lane, slot),
            Retired::Received(slot, length) => Event::Received(lane, slot, length),
        }))
    }
}
