//! Connections without ports: what a [`Wire`] is asked for happens in memory, as a strict port would do it, and with losses
//! if these are wanted.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::HEADER_BYTES;
use super::link::RdmaLink;
use super::rail::{Rail, Session, Slots};
use super::wire::{Event, Lane, RailShape, Wire};
use crate::error::Cause;

/// What becomes of a message on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    GetsLost,
    /// One bit changes.
    GetsDamaged,
    /// It stays, and with it all that follows in its lane, until so many messages of the other lane have arrived.
    IsLate(usize),
}

/// Decides about each message, by its side, lane and number among the messages of both.
pub(crate) type Judge = Arc<dyn Fn(usize, Lane, usize) -> Fate + Send + Sync>;

pub(crate) struct SimulatedSlot(Vec<u8>);

impl Deref for SimulatedSlot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for SimulatedSlot {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A message on its way, and how many of the other lane it lets pass.
type OnTheWay = (Vec<u8>, usize);

/// One side's port.
#[derive(Default)]
struct Port {
    /// By lane.
    posted: [VecDeque<SimulatedSlot>; 2],
    on_the_way: [VecDeque<OnTheWay>; 2],
    events: VecDeque<Event<SimulatedSlot>>,
    gone: bool,
}

struct Both {
    ports: [Port; 2],
    sent: usize,
    full_length: bool,
    judge: Judge,
}

pub(crate) struct SimulatedWire {
    both: Arc<Mutex<Both>>,
    side: usize,
}

impl SimulatedWire {
    fn both(&self) -> MutexGuard<'_, Both> {
        self.both.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Both {
    /// Brings what is due to the receives of a side.
    fn deliver(&mut self, side: usize) {
        let port = &mut self.ports[side];
        loop {
            let free = |lane: usize| port.on_the_way[lane].front().is_some_and(|(_, late)| *late == 0);
            let blocked = |lane: usize| port.on_the_way[lane].is_empty();
            // A late message also goes when there is nothing that it could wait for.
            let lane = match (free(0), free(1)) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) if !blocked(0) => 0,
                (false, false) if !blocked(1) => 1,
                _ => return,
            };
            let Some((bytes, _)) = port.on_the_way[lane].pop_front() else { return };
            if let Some((_, late)) = port.on_the_way[1 - lane].front_mut() {
                *late = late.saturating_sub(1);
            }
            let mut slot = port.posted[lane].pop_front().expect("a message met no receive");
            if self.full_length {
                assert_eq!(bytes.len().div_ceil(4096), slot.len().div_ceil(4096), "not as many frames as posted");
            }
            slot[..bytes.len()].copy_from_slice(&bytes);
            let lane = Lane::BOTH[lane];
            port.events.push_back(Event::Received(lane, slot, bytes.len()));
        }
    }
}

impl Wire for SimulatedWire {
    type Slot = SimulatedSlot;

    fn post_send(&mut self, lane: Lane, slot: SimulatedSlot, length: usize) -> Result<(), Cause> {
        let side = self.side;
        let mut both = self.both();
        let mut bytes = slot[..length].to_vec();
        let fate = (both.judge)(side, lane, both.sent);
        both.sent += 1;
        both.ports[side].events.push_back(Event::Sent(lane, slot));
        let late = if let Fate::IsLate(late) = fate { late } else { 0 };
        if fate == Fate::GetsDamaged {
            let at = both.sent * 7919 % HEADER_BYTES;
            bytes[at] ^= 1 << (both.sent % 8);
        }
        if fate != Fate::GetsLost && !both.ports[1 - side].gone {
            both.ports[1 - side].on_the_way[lane as usize].push_back((bytes, late));
        }
        Ok(())
    }

    fn post_receive(&mut self, lane: Lane, slot: SimulatedSlot) -> Result<(), Cause> {
        let side = self.side;
        self.both().ports[side].posted[lane as usize].push_back(slot);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event<SimulatedSlot>>, Cause> {
        let side = self.side;
        let mut both = self.both();
        both.deliver(side);
        Ok(both.ports[side].events.pop_front())
    }
}

impl Drop for SimulatedWire {
    fn drop(&mut self) {
        let side = self.side;
        let mut both = self.both();
        let on_the_way = std::mem::take(&mut both.ports[side].on_the_way);
        both.ports[side].gone = true;
        // Nothing is delivered to a port that is gone.
        drop(on_the_way);
    }
}

fn slots(shape: &RailShape) -> Slots<SimulatedSlot> {
    let some = |count: usize, bytes| (0..count).map(|_| SimulatedSlot(vec![0; bytes])).collect::<Vec<_>>();
    Slots {
        send: shape.lanes.map(|lane| some(lane.sends, lane.bytes)),
        receive: shape.lanes.map(|lane| some(lane.receives(), lane.bytes)),
    }
}

/// Both ends of a simulated rail.
pub(crate) fn rails(shape: RailShape, sessions: [Session; 2], judge: Judge) -> [Rail<SimulatedWire>; 2] {
    let both = Both { ports: Default::default(), sent: 0, full_length: shape.full_length, judge };
    let both = Arc::new(Mutex::new(both));
    [0, 1].map(|side| {
        let wire = SimulatedWire { both: both.clone(), side };
        Rail::new(wire, shape, sessions[side], slots(&shape)).expect("simulated posts succeed")
    })
}

/// Both ends of a link over so many simulated rails.
pub(crate) fn pair(shape: RailShape, count: usize, judge: &Judge) -> [RdmaLink<SimulatedWire>; 2] {
    let session = Session { generation: 1, number: 0x1234_5678 };
    let rails = (0..count).map(|_| rails(shape, [session; 2], judge.clone()));
    let (a, b): (Vec<_>, Vec<_>) = rails.map(|[a, b]| (a, b)).unzip();
    [RdmaLink::new(a, Vec::new()), RdmaLink::new(b, Vec::new())]
}

/// Nothing happens to anything.
pub(crate) fn kind() -> Judge {
    Arc::new(|_, _, _| Fate::Arrives)
}
