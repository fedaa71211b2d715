//! Reductions in which members get each other's contributions as they are, and fold them in the team's order.

use std::ops::Range;

use super::tree::Ways;
use super::{Buffer, CHUNKS_MAX, Combine, Fold, Message, Place, Plan, Request, Round, Seen, Tuning};
use crate::arithmetic::Encoding;
use crate::element::Operator;
use crate::layout::Layout;

/// What lies next to each other in the scratch memory begins at multiples of so many bytes.
const ALIGNMENT: usize = 64;
/// Parts of a buffer begin at multiples of so many elements, so that blocks with a common scale are the same however a
/// buffer is shared out.
const GRAIN: usize = 64;

/// A reduction of a contiguous buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reduction {
    pub(super) operator: Operator,
    /// That of the buffer.
    pub(super) encoding: Encoding,
    /// That of contributions and results on the wire, where it is another one.
    pub(super) wire: Option<Encoding>,
    pub(super) elements: usize,
}

impl Reduction {
    /// `None` for a request that reduces nothing.
    pub(super) fn of(request: &Request<'_>) -> Option<Self> {
        Some(Self {
            operator: request.tags.operator?,
            encoding: Encoding::of_element(request.tags.element)?,
            wire: Encoding::of_wire(request.tags.wire),
            elements: request.width,
        })
    }

    /// Elements of the caller's buffer.
    pub(super) fn main(&self, range: &Range<usize>) -> Layout {
        Layout::contiguous(self.encoding.bytes(range.start)..self.encoding.bytes(range.end))
    }

    pub(super) fn main_place(&self, start: usize) -> Place {
        Place { buffer: Buffer::Main, start: self.encoding.bytes(start), encoding: self.encoding }
    }

    pub(super) fn fold(&self, sources: Vec<Place>, target: Place, elements: usize) -> Fold {
        Fold { operator: self.operator, sources, target, elements }
    }
}

/// Hands out scratch memory.
#[derive(Default)]
pub(super) struct Allotment {
    bytes: usize,
}

impl Allotment {
    /// Room for so many elements.
    pub(super) fn take(&mut self, encoding: Encoding, elements: usize) -> Place {
        let start = self.bytes;
        self.bytes += encoding.bytes(elements).next_multiple_of(ALIGNMENT);
        Place { buffer: Buffer::Scratch, start, encoding }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The first elements at a place, as a message.
pub(super) fn layout_at(place: &Place, elements: usize) -> Layout {
    Layout::contiguous(place.range(0, elements))
}

/// Two members send each other the whole buffer and combine what comes with what is there.
pub(super) fn pair(seen: &Seen<'_>, reduction: &Reduction) -> Plan {
    let whole = reduction.main(&(0..reduction.elements));
    let other = seen.rank(1 - seen.index);
    let combine = Combine {
        operator: reduction.operator,
        encoding: reduction.encoding,
        incoming_first: seen.index == 1,
        behind_send: true,
    };
    let send = Message::new(other, Buffer::Main, whole);
    let receive = Message { combine: Some(combine), ..send };
    let round = Round { sends: vec![send], receives: vec![receive], folds: Vec::new() };
    Plan { rounds: vec![round], scratch_bytes: 0 }
}

/// Every member gets all contributions and folds them.
pub(super) fn one_shot(seen: &Seen<'_>, reduction: &Reduction) -> Plan {
    let elements = reduction.elements;
    let mut scratch = Allotment::default();
    let mut rounds = Vec::new();
    let encoding = reduction.wire.unwrap_or(reduction.encoding);
    let own = reduction.main_place(0);
    let mut contributions: Vec<Place> = Vec::with_capacity(seen.len());
    for member in 0..seen.len() {
        let stays = member == seen.index && reduction.wire.is_none();
        contributions.push(if stays { own } else { scratch.take(encoding, elements) });
    }
    if reduction.wire.is_some() {
        let compress = reduction.fold(vec![own], contributions[seen.index], elements);
        rounds.push(Round { folds: vec![compress], ..Round::default() });
    }
    let places = contributions.clone();
    Ways::of(seen).spread(&mut rounds, |member| (places[member].buffer, layout_at(&places[member], elements)));
    let mut folds = Vec::new();
    if reduction.wire.is_some() {
        // The result is compressed, as it is where it has to travel.
        let result = scratch.take(encoding, elements);
        folds.push(reduction.fold(contributions, result, elements));
        folds.push(reduction.fold(vec![result], own, elements));
    } else {
        folds.push(reduction.fold(contributions, own, elements));
    }
    push_folds(&mut rounds, folds);
    Plan { rounds, scratch_bytes: scratch.bytes() }
}

/// Each member folds a part of the buffer, of which it gets all contributions; then the parts are gathered. Long buffers
/// are done window by window.
pub(super) fn by_parts(seen: &Seen<'_>, reduction: &Reduction, tuning: &Tuning) -> Plan {
    let shortest = reduction.elements / (CHUNKS_MAX * seen.len());
    let part = (tuning.part_bytes / reduction.encoding.bytes(1)).max(shortest).next_multiple_of(GRAIN).max(GRAIN);
    let mut plan = Plan::default();
    let ways = Ways::of(seen);
    let window = part.saturating_mul(seen.len());
    let mut start = 0;
    while start < reduction.elements || start == 0 {
        let end = reduction.elements.min(start.saturating_add(window));
        let parts: Vec<Range<usize>> = shares(start..end, seen.len()).collect();
        let scratch_bytes = match reduction.wire {
            None => exact_window(seen, &ways, reduction, &parts, &mut plan.rounds),
            Some(wire) => compressed_window(seen, &ways, reduction, wire, &parts, &mut plan.rounds),
        };
        plan.scratch_bytes = plan.scratch_bytes.max(scratch_bytes);
        start = end.max(1);
    }
    plan
}

/// Cuts a range, which starts at a grain, into as many parts as there are members, at grains.
fn shares(range: Range<usize>, members: usize) -> impl Iterator<Item = Range<usize>> {
    let grains = range.len().div_ceil(GRAIN);
    let bound = move |member: usize| (range.start + grains * member / members * GRAIN).min(range.end);
    (0..members).map(move |member| bound(member)..bound(member + 1))
}

fn exact_window(
    seen: &Seen<'_>,
    ways: &Ways<'_>,
    reduction: &Reduction,
    parts: &[Range<usize>],
    rounds: &mut Vec<Round>,
) -> usize {
    let scratch_bytes = scatter(seen, reduction, parts, rounds);
    ways.spread(rounds, |member| (Buffer::Main, reduction.main(&parts[member])));
    scratch_bytes
}

/// Appends a round in which each member gets all contributions to its part, and folds them in place. Returns the bytes
/// of scratch memory in use.
fn scatter(seen: &Seen<'_>, reduction: &Reduction, parts: &[Range<usize>], rounds: &mut Vec<Round>) -> usize {
    let own = &parts[seen.index];
    let mut scratch = Allotment::default();
    let target = reduction.main_place(own.start);
    let contributions: Vec<Place> = (0..seen.len())
        .map(|member| if member == seen.index { target } else { scratch.take(reduction.encoding, own.len()) })
        .collect();
    let send = |member: usize| Message::new(seen.rank(member), Buffer::Main, reduction.main(&parts[member]));
    let receive =
        |member: usize| Message::new(seen.rank(member), Buffer::Scratch, layout_at(&contributions[member], own.len()));
    let (sends, receives) = (seen.others().map(send).collect(), seen.others().map(receive).collect());
    let folds = vec![reduction.fold(contributions.clone(), target, own.len())];
    rounds.push(Round { sends, receives, folds });
    scratch.bytes()
}

/// As [`exact_window`], with contributions and results compressed.
fn compressed_window(
    seen: &Seen<'_>,
    ways: &Ways<'_>,
    reduction: &Reduction,
    wire: Encoding,
    parts: &[Range<usize>],
    rounds: &mut Vec<Round>,
) -> usize {
    let own = &parts[seen.index];
    let mut scratch = Allotment::default();
    let outgoing: Vec<Place> = parts.iter().map(|part| scratch.take(wire, part.len())).collect();
    let compress = |(part, &place): (&Range<usize>, &Place)| {
        reduction.fold(vec![reduction.main_place(part.start)], place, part.len())
    };
    let folds = parts.iter().zip(&outgoing).map(compress).collect();
    rounds.push(Round { folds, ..Round::default() });

    let contributions: Vec<Place> = (0..seen.len())
        .map(|member| if member == seen.index { outgoing[member] } else { scratch.take(wire, own.len()) })
        .collect();
    // What has been sent makes room for the results.
    let message = |member: usize, place: &Place, part: &Range<usize>| {
        Message::new(seen.rank(member), Buffer::Scratch, layout_at(place, part.len()))
    };
    let sends = seen.others().map(|member| message(member, &outgoing[member], &parts[member])).collect();
    let receives = seen.others().map(|member| message(member, &contributions[member], own)).collect();
    let folds = vec![reduction.fold(contributions.clone(), outgoing[seen.index], own.len())];
    rounds.push(Round { sends, receives, folds });

    ways.spread(rounds, |member| (Buffer::Scratch, layout_at(&outgoing[member], parts[member].len())));
    let expand = |(part, &place): (&Range<usize>, &Place)| {
        reduction.fold(vec![place], reduction.main_place(part.start), part.len())
    };
    push_folds(rounds, parts.iter().zip(&outgoing).map(expand).collect());
    scratch.bytes()
}

/// Adds work to the end of the last round.
fn push_folds(rounds: &mut [Round], folds: Vec<Fold>) {
    if let Some(last) = rounds.last_mut() {
        last.folds.extend(folds);
    }
}

/// Each member folds its part of the buffer, whatever the parts, some bytes of all parts at a time.
pub(super) fn reduce_scatter(seen: &Seen<'_>, reduction: &Reduction, parts: &[Range<usize>], tuning: &Tuning) -> Plan {
    let longest = parts.iter().map(Range::len).max().unwrap_or(0);
    let piece = (tuning.part_bytes / reduction.encoding.bytes(1)).max(longest / CHUNKS_MAX).max(1);
    let mut plan = Plan::default();
    for first in (0..longest.max(1)).step_by(piece) {
        let pieces: Vec<Range<usize>> = parts
            .iter()
            .map(|part| {
                let start = part.end.min(part.start.saturating_add(first));
                start..part.end.min(start.saturating_add(piece))
            })
            .collect();
        plan.scratch_bytes = plan.scratch_bytes.max(scatter(seen, reduction, &pieces, &mut plan.rounds));
    }
    plan
}
