//! A reduction along a chain of neighbours, in chunks: partial results travel up the team's order, each member folding
//! its own elements in, and results travel down again from the last member.
//!
//! Each cable carries the buffer once in each direction, and each member works on another chunk at the same time.

use std::ops::Range;

use super::reduce::{Allotment, Reduction, layout_at};
use super::{Buffer, CHUNKS_MAX, Combine, Message, Place, Plan, Round, Seen, Tuning};
use crate::arithmetic::Encoding;
use crate::element::Operator;

/// Chunks begin at multiples of so many elements.
const GRAIN: usize = 64;
/// By how many more rounds a result is expected later for each member that it has yet to pass, up and down. Two are
/// needed; one more leaves time for the way. With yet another, members would wait for each other where links carry less
/// than a chunk.
const LAG: usize = 3;

/// All of the chain as one member sees it.
struct Chain<'a> {
    seen: &'a Seen<'a>,
    reduction: &'a Reduction,
    chunk: usize,
    /// Where a partial result comes in and where the next one is made, unless it is in place.
    partial: Option<(Place, Place)>,
}

pub(super) fn all_reduce(seen: &Seen<'_>, reduction: &Reduction, tuning: &Tuning) -> Plan {
    let longest = (tuning.chunk_bytes / reduction.encoding.bytes(1)).max(reduction.elements / CHUNKS_MAX);
    let chunk = longest.next_multiple_of(GRAIN).max(GRAIN);
    // Partial sums have more precision than 16-bit elements; partial maxima are elements.
    let in_place = reduction.encoding == Encoding::F32 || reduction.operator == Operator::Max;
    let mut scratch = Allotment::default();
    let incoming = if seen.index == 1 { reduction.encoding } else { Encoding::F32 };
    let partial =
        (!in_place && seen.index > 0).then(|| (scratch.take(incoming, chunk), scratch.take(Encoding::F32, chunk)));
    let chain = Chain { seen, reduction, chunk, partial };
    let last_round = chain.chunks() + chain.lag() + 1;
    Plan { rounds: (0..last_round).map(|round| chain.round(round)).collect(), scratch_bytes: scratch.bytes() }
}

impl Chain<'_> {
    fn chunks(&self) -> usize {
        self.reduction.elements.div_ceil(self.chunk).max(1)
    }

    fn elements(&self, chunk: usize) -> Range<usize> {
        chunk * self.chunk..self.reduction.elements.min((chunk + 1) * self.chunk)
    }

    /// The rounds between a chunk's way up through this member and its way down. The first member sends a chunk one round
    /// earlier than the others, which fold it in first.
    fn lag(&self) -> usize {
        let lag = LAG * (self.seen.len() - 1 - self.seen.index);
        if self.seen.index == 0 { lag - 1 } else { lag }
    }

    /// The chunk that is worked on in a round which comes `delay` rounds after the one of the chunk's way up.
    fn chunk_of(&self, round: usize, delay: usize) -> Option<usize> {
        round.checked_sub(delay).filter(|&chunk| chunk < self.chunks())
    }

    fn round(&self, round: usize) -> Round {
        let (first, last) = (self.seen.index == 0, self.seen.index + 1 == self.seen.len());
        let mut plan = Round::default();
        if let Some(chunk) = self.chunk_of(round, 0).filter(|_| !first) {
            self.come_up(chunk, last, &mut plan);
        }
        // The first member has nothing to wait for; the others pass on what they have folded in the round before.
        if let Some(chunk) = self.chunk_of(round, usize::from(!first)).filter(|_| !last) {
            plan.sends.push(self.go_up(chunk));
        }
        let result = |member: usize, chunk: usize| {
            Message::new(self.seen.rank(member), Buffer::Main, self.reduction.main(&self.elements(chunk)))
        };
        if let Some(chunk) = self.chunk_of(round, self.lag()).filter(|_| !last) {
            plan.receives.push(result(self.seen.index + 1, chunk));
        }
        if let Some(chunk) = self.chunk_of(round, self.lag() + 1).filter(|_| !first) {
            plan.sends.push(result(self.seen.index - 1, chunk));
        }
        plan
    }

    /// The members before this one have folded a chunk: it comes, and this one folds its own elements in.
    fn come_up(&self, chunk: usize, last: bool, round: &mut Round) {
        let elements = self.elements(chunk);
        let from = self.seen.rank(self.seen.index - 1);
        let own = self.reduction.main_place(elements.start);
        match self.partial {
            None => {
                let combine = Combine {
                    operator: self.reduction.operator,
                    encoding: self.reduction.encoding,
                    incoming_first: true,
                    behind_send: false,
                };
                let message = Message::new(from, Buffer::Main, self.reduction.main(&elements));
                round.receives.push(Message { combine: Some(combine), ..message });
            }
            Some((incoming, outgoing)) => {
                round.receives.push(Message::new(from, Buffer::Scratch, layout_at(&incoming, elements.len())));
                let target = if last { own } else { outgoing };
                round.folds.push(self.reduction.fold(vec![incoming, own], target, elements.len()));
            }
        }
    }

    fn go_up(&self, chunk: usize) -> Message {
        let to = self.seen.rank(self.seen.index + 1);
        let elements = self.elements(chunk);
        match self.partial {
            None => Message::new(to, Buffer::Main, self.reduction.main(&elements)),
            Some((_, outgoing)) => Message::new(to, Buffer::Scratch, layout_at(&outgoing, elements.len())),
        }
    }
}
