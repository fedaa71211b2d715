//! What a rank has to do in a collective, as data.
//!
//! A plan is a list of rounds. In each, a rank sends and receives some messages, at most one to and one from each other
//! rank, and when all of them are done works on what has come. Plans are pure functions of the team, the topology, the
//! sizes and the [`Tuning`], which are the same on all members: so each member knows what the others do without having
//! been told. Rounds are a member's own affair: one may be rounds ahead of another, as far as its links carry.
//!
//! Whatever the plan, each element of a reduction is the one that a single process would get that takes the members'
//! elements in the team's order: `((r0 + r1) + r2) + r3`. That rules out trees of partial sums, but nothing else, and
//! all members hold the same bits at all times.

mod chain;
mod choose;
mod exchange;
#[cfg(test)]
mod interpreter;
mod reduce;
mod seen;
#[cfg(test)]
mod tests;
mod tree;
mod tuning;

use std::ops::Range;

pub(crate) use self::choose::plan;
pub(crate) use self::seen::Seen;
pub use self::tuning::Tuning;
use crate::arithmetic::Encoding;
use crate::element::Operator;
use crate::layout::Layout;
use crate::message::Tags;

/// Very long buffers travel in longer messages, so that plans stay short.
const CHUNKS_MAX: usize = 512;

/// What one rank does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    pub(crate) rounds: Vec<Round>,
    /// The memory it needs besides the caller's buffer.
    pub(crate) scratch_bytes: usize,
}

/// Messages that travel at the same time, and what is done when all have come and gone.
///
/// No message is received where one of the same round is sent from, but for one that is combined with what is there,
/// which then follows what has been sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Round {
    pub(crate) sends: Vec<Message>,
    pub(crate) receives: Vec<Message>,
    pub(crate) folds: Vec<Fold>,
}

/// A message to or from a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) rank: usize,
    pub(crate) buffer: Buffer,
    pub(crate) layout: Layout,
    /// For a message that is received: do not replace what is there, but combine it with what comes. At most one
    /// message of a round, contiguous.
    pub(crate) combine: Option<Combine>,
}

/// How what comes is combined with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Combine {
    pub(crate) operator: Operator,
    pub(crate) encoding: Encoding,
    /// Whether what comes stands before what is there in the team's order.
    pub(crate) incoming_first: bool,
    /// Whether the message sent to the same rank in this round is the very same part of the buffer: it must be sent
    /// before it is changed.
    pub(crate) behind_send: bool,
}

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// The caller's buffer.
    Main,
    /// Memory of the fabric.
    Scratch,
}

/// Elements from a byte of a buffer on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) buffer: Buffer,
    pub(crate) start: usize,
    pub(crate) encoding: Encoding,
}

/// Local work: elements of all sources, folded in this order, to a target, which may be one of the sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fold {
    pub(crate) operator: Operator,
    pub(crate) sources: Vec<Place>,
    pub(crate) target: Place,
    pub(crate) elements: usize,
}

/// A collective, as all members call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) tags: Tags,
    /// The member at the centre of a broadcast or gather.
    pub(crate) root: usize,
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) width: usize,
    /// By member: its part of a row. For an all-to-all what goes to each. Empty where parts are equal.
    pub(crate) parts: &'a [Range<usize>],
    /// For an all-to-all: where what comes from each member belongs. Empty where parts are equal.
    pub(crate) arrivals: &'a [Range<usize>],
}

impl<'a> Request<'a> {
    /// One that is about a contiguous buffer of so many elements.
    pub(crate) fn flat(tags: Tags, elements: usize) -> Self {
        Self { tags, root: 0, rows: 1, width: elements, parts: &[], arrivals: &[] }
    }

    /// The bytes of the whole collective, by which members see that they mean the same.
    pub(crate) fn total_bytes(&self) -> usize {
        self.rows.max(1) * self.width * self.element_bytes()
    }

    /// The part of a member, of so many.
    fn part(&self, parts: &[Range<usize>], member: usize, members: usize) -> Layout {
        match parts.get(member) {
            Some(part) => self.layout(part),
            None => {
                let share = self.width / members;
                self.layout(&(member * share..(member + 1) * share))
            }
        }
    }

    fn element_bytes(&self) -> usize {
        self.tags.element.bytes()
    }

    /// The bytes of a part.
    fn layout(&self, part: &Range<usize>) -> Layout {
        let bytes = self.element_bytes();
        Layout::columns(self.rows, self.width * bytes, part.start * bytes..part.end * bytes)
    }
}

impl Message {
    /// One that replaces what is at its place.
    pub(crate) fn new(rank: usize, buffer: Buffer, layout: Layout) -> Self {
        Self { rank, buffer, layout, combine: None }
    }
}

impl Place {
    /// The bytes of `count` elements from `first` on, which is a multiple of a block of the encoding.
    pub(crate) fn range(&self, first: usize, count: usize) -> Range<usize> {
        let start = self.start + self.encoding.bytes(first);
        start..start + self.encoding.bytes(count)
    }
}
