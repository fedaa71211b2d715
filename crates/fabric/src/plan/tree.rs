//! Blocks that travel from one member to all others, over members in between where that saves cables.

use super::{Buffer, CHUNKS_MAX, Message, Plan, Request, Round, Seen, Tuning};
use crate::layout::Layout;

/// The ways of blocks from every member to all others.
///
/// Where all are connected, each block goes straight to everyone. Elsewhere each travels down a tree of shortest ways, so
/// that it passes each cable once.
pub(super) struct Ways<'a> {
    seen: &'a Seen<'a>,
    /// In the order of their sources; `None` where all are connected.
    hops: Option<Vec<Hop>>,
    /// The most hops of a way.
    deepest: usize,
}

/// A block that is passed on.
struct Hop {
    source: usize,
    from: usize,
    to: usize,
    /// The number of the hop on its way, from 1.
    depth: usize,
}

impl<'a> Ways<'a> {
    pub(super) fn of(seen: &'a Seen<'a>) -> Self {
        if seen.is_full_mesh() {
            return Self { seen, hops: None, deepest: 1 };
        }
        let hops: Vec<Hop> = (0..seen.len()).flat_map(|source| hops_of(seen, source)).collect();
        let deepest = hops.iter().map(|hop| hop.depth).max().unwrap_or(0);
        Self { seen, hops: Some(hops), deepest }
    }

    /// Appends rounds in which every member gets each member's block. `block(member)` is where it lies, at the member
    /// that has it and at those that get it.
    pub(super) fn spread(&self, rounds: &mut Vec<Round>, block: impl Fn(usize) -> (Buffer, Layout)) {
        let message = |member: usize, source: usize| {
            let (buffer, layout) = block(source);
            Message::new(self.seen.rank(member), buffer, layout)
        };
        let Some(hops) = &self.hops else {
            let sends = self.seen.others().map(|member| message(member, self.seen.index)).collect();
            let receives = self.seen.others().map(|member| message(member, member)).collect();
            rounds.push(Round { sends, receives, folds: Vec::new() });
            return;
        };
        for depth in 1..=self.deepest {
            // The messages of a pair are in the order of their sources on both sides.
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for hop in hops.iter().filter(|hop| hop.depth == depth) {
                if hop.from == self.seen.index {
                    sends.push(message(hop.to, hop.source));
                }
                if hop.to == self.seen.index {
                    receives.push(message(hop.from, hop.source));
                }
            }
            rounds.extend(in_rounds(sends, receives));
        }
    }
}

fn hops_of(seen: &Seen<'_>, source: usize) -> Vec<Hop> {
    let parents: Vec<Option<usize>> = (0..seen.len()).map(|member| seen.parent(source, member)).collect();
    // How often a block is passed on before it is at a member.
    let depth = |member: usize| std::iter::successors(parents[member], |&parent| parents[parent]).count();
    let hop = |(to, parent): (usize, &Option<usize>)| parent.map(|from| Hop { source, from, to, depth: depth(to) });
    parents.iter().enumerate().filter_map(hop).collect()
}

/// Shares messages out to rounds so that each has at most one to and one from each rank. As both sides of a pair count
/// their messages alike, none waits for a message that the other sends in a later round.
fn in_rounds(sends: Vec<Message>, receives: Vec<Message>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for (messages, of) in [(sends, sends_of as fn(&mut Round) -> &mut Vec<Message>), (receives, receives_of)] {
        for message in messages {
            let has_place = |round: &mut Round| of(round).iter().all(|other| other.rank != message.rank);
            match rounds.iter_mut().position(has_place) {
                Some(index) => of(&mut rounds[index]).push(message),
                None => {
                    rounds.push(Round::default());
                    if let Some(round) = rounds.last_mut() {
                        of(round).push(message);
                    }
                }
            }
        }
    }
    rounds
}

fn sends_of(round: &mut Round) -> &mut Vec<Message> {
    &mut round.sends
}

fn receives_of(round: &mut Round) -> &mut Vec<Message> {
    &mut round.receives
}

/// The root's buffer to all. Where all are connected, the root sends it to everyone, or, when it is long, to the member
/// after it, which passes it on to the next, in chunks. Elsewhere it goes down a tree of shortest ways in chunks.
///
/// A request of no rows is one whose length the others do not know: what comes first comes from the member that
/// [`Seen::parent`] names, whatever the length.
pub(super) fn broadcast(seen: &Seen<'_>, request: &Request<'_>, tuning: &Tuning) -> Plan {
    let bytes = request.width * request.element_bytes();
    let mesh = seen.is_full_mesh();
    let in_row = mesh && request.rows > 0 && bytes > tuning.star_bytes_max && seen.len() > 2;
    let len = seen.len();
    // Positions as counted from the root.
    let turn = |member: usize| (member + len - request.root) % len;
    let parent = |member: usize| match member {
        _ if member == request.root => None,
        _ if in_row => Some((member + len - 1) % len),
        _ if mesh => Some(request.root),
        _ => seen.parent(request.root, member),
    };
    let own_parent = parent(seen.index);
    let mut children: Vec<usize> = (0..len).filter(|&member| parent(member) == Some(seen.index)).collect();
    children.sort_by_key(|&member| turn(member));
    let chunk_bytes = if mesh && !in_row { bytes.max(1) } else { tuning.chunk_bytes.max(bytes / CHUNKS_MAX).max(1) };
    let chunks = bytes.div_ceil(chunk_bytes).max(1);
    let chunk = |index: usize| Layout::contiguous(index * chunk_bytes..bytes.min((index + 1) * chunk_bytes));
    let message = |member: usize, index: usize| Message::new(seen.rank(member), Buffer::Main, chunk(index));
    // Who passes chunks on sends each one round after it has come.
    let behind = usize::from(own_parent.is_some());
    let rounds = (0..chunks + behind).map(|round| Round {
        sends: match round.checked_sub(behind) {
            Some(index) => children.iter().map(|&child| message(child, index)).collect(),
            None => Vec::new(),
        },
        receives: own_parent.filter(|_| round < chunks).map(|parent| message(parent, round)).into_iter().collect(),
        folds: Vec::new(),
    });
    Plan { rounds: rounds.collect(), scratch_bytes: 0 }
}
