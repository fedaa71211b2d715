//! Runs the plans of all members of a team in memory, message by message, in any order.

use std::collections::{HashMap, VecDeque};

use super::{Message, Plan, Round, Seen, Tuning};
use crate::arithmetic::Folder;
use crate::layout::{Layout, PIECES};
use crate::memory::{Main, Memory, Scratch};
use crate::topology::Topology;

/// Messages on the way, by sender and receiver.
type Wires = HashMap<(usize, usize), VecDeque<Vec<u8>>>;

/// A member that runs its plan.
struct Runner {
    plan: Plan,
    round: usize,
    /// Receives of this round that are left; `None` before the round has begun.
    left: Option<Vec<Message>>,
    main: Scratch,
    main_bytes: usize,
    scratch: Scratch,
}

/// Runs the plans that `plan` makes for each member over `mains`, the members' buffers, and returns the buffers.
/// `order` decides whose turn it is. Links either carry any number of messages, or none: then a round ends only when all
/// that was sent in it has been received.
///
/// Panics when a plan breaks a rule: messages of a pair that do not fit each other, a message received where another is
/// being sent from, or members that wait for each other forever.
pub(super) fn run(
    topology: &Topology,
    members: &[usize],
    mains: Vec<Vec<u8>>,
    plan: impl Fn(&Seen<'_>) -> Plan,
    mut order: impl FnMut(usize) -> usize,
    links_have_room: bool,
) -> Vec<Vec<u8>> {
    let mut wires = Wires::new();
    let mut runners: Vec<Runner> = mains
        .into_iter()
        .enumerate()
        .map(|(index, bytes)| {
            let plan = plan(&Seen { topology, members, index });
            let mut main = Scratch::default();
            main.bytes(bytes.len()).copy_from_slice(&bytes);
            let mut scratch = Scratch::default();
            // Nothing may depend on what is there at first.
            scratch.bytes(plan.scratch_bytes).fill(0xa5);
            Runner { plan, round: 0, left: None, main, main_bytes: bytes.len(), scratch }
        })
        .collect();
    loop {
        let open: Vec<usize> =
            (0..runners.len()).filter(|&index| runners[index].round < runners[index].plan.rounds.len()).collect();
        if open.is_empty() {
            break;
        }
        let first = order(open.len());
        let moved = (0..open.len()).any(|turn| {
            let index = open[(first + turn) % open.len()];
            runners[index].step(members[index], &mut wires, links_have_room)
        });
        assert!(moved, "members {open:?} of {members:?} wait for each other");
    }
    assert!(wires.values().all(VecDeque::is_empty), "messages that nobody receives");
    runners.into_iter().map(|mut runner| runner.main.bytes(runner.main_bytes).to_vec()).collect()
}

impl Runner {
    /// Begins a round, receives a message, or ends a round. False when nothing could be done.
    fn step(&mut self, rank: usize, wires: &mut Wires, links_have_room: bool) -> bool {
        let round = self.plan.rounds[self.round].clone();
        let Self { main, main_bytes, scratch, plan, .. } = self;
        let mut main = Main::Shared(main.bytes(*main_bytes));
        let mut memory = Memory { main: &mut main, scratch: scratch.bytes(plan.scratch_bytes) };
        let Some(left) = &mut self.left else {
            check(&round);
            for message in &round.sends {
                let bytes = read(&message.layout, memory.source(message.buffer));
                wires.entry((rank, message.rank)).or_default().push_back(bytes);
            }
            self.left = Some(round.receives);
            return true;
        };
        if left.is_empty() {
            let taken = |message: &Message| wires.get(&(rank, message.rank)).is_none_or(VecDeque::is_empty);
            if !links_have_room && !round.sends.iter().all(taken) {
                return false;
            }
            let mut folder = Folder::new();
            round.folds.iter().for_each(|fold| memory.fold(&mut folder, fold));
            self.round += 1;
            self.left = None;
            return true;
        }
        let arrived = |message: &Message| wires.get(&(message.rank, rank)).is_some_and(|wire| !wire.is_empty());
        let Some(next) = left.iter().position(arrived) else { return false };
        let message = left.swap_remove(next);
        let bytes = wires.get_mut(&(message.rank, rank)).and_then(VecDeque::pop_front).unwrap();
        assert_eq!(bytes.len(), message.layout.len(), "rank {rank} expects another message from {}", message.rank);
        receive(&message, &bytes, memory.target(message.buffer));
        true
    }
}

fn receive(message: &Message, bytes: &[u8], target: &mut [u8]) {
    let place = |position: usize| place_of(&message.layout, position);
    match message.combine {
        None => bytes.iter().enumerate().for_each(|(position, &byte)| target[place(position)] = byte),
        Some(combine) if !bytes.is_empty() => {
            let mut incoming = Scratch::default();
            incoming.bytes(bytes.len()).copy_from_slice(bytes);
            let main = &mut target[place(0)..place(0) + bytes.len()];
            let incoming = incoming.bytes(bytes.len());
            Folder::new().combine(combine.operator, combine.encoding, main, incoming, combine.incoming_first);
        }
        Some(_) => {}
    }
}

/// Checks that a round keeps the rules of rounds.
fn check(round: &Round) {
    for messages in [&round.sends, &round.receives] {
        for (index, message) in messages.iter().enumerate() {
            assert!(messages[..index].iter().all(|other| other.rank != message.rank), "two messages of a pair");
        }
    }
    assert!(round.receives.iter().filter(|message| message.combine.is_some()).count() <= 1);
    let apart = |a: &Message, b: &Message| {
        let overlap = |(start, length): (usize, usize)| {
            b.layout.spans(0).any(|(other, other_length)| start < other + other_length && other < start + length)
        };
        a.buffer != b.buffer || !a.layout.spans(0).any(overlap)
    };
    for message in &round.receives {
        if message.combine.is_some_and(|combine| combine.behind_send) {
            let twin = round.sends.iter().find(|send| send.rank == message.rank).unwrap();
            assert_eq!((twin.buffer, twin.layout), (message.buffer, message.layout));
            assert_eq!(round.sends.len(), 1);
        } else {
            assert!(round.sends.iter().all(|send| apart(send, message)), "sent and received at once");
        }
    }
}

fn read(layout: &Layout, buffer: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < layout.len() {
        let mut pieces = [std::io::IoSlice::new(&[]); PIECES];
        let count = layout.pieces(buffer, bytes.len(), &mut pieces);
        pieces[..count].iter().for_each(|piece| bytes.extend_from_slice(piece));
    }
    bytes
}

fn place_of(layout: &Layout, position: usize) -> usize {
    layout.place_of(position)
}

/// Thresholds at which short buffers take every way that long ones take.
pub(super) fn small_tuning() -> Tuning {
    Tuning { chunk_bytes: 512, part_bytes: 300, star_bytes_max: 700, ..Tuning::default() }
}
