//! Collectives in which every message goes straight to the one that it is for.

use std::ops::Range;

use super::tree::Ways;
use super::{Buffer, Message, Plan, Request, Round, Seen};
use crate::layout::Layout;

/// Teams of up to so many members meet by everyone telling everyone.
const MEETING_MAX: usize = 8;

/// Everyone's part to all.
pub(super) fn all_gather(seen: &Seen<'_>, request: &Request<'_>) -> Plan {
    let mut rounds = Vec::new();
    Ways::of(seen).spread(&mut rounds, |member| (Buffer::Main, request.part(request.parts, member, seen.len())));
    Plan { rounds, scratch_bytes: 0 }
}

/// Everyone's part to the root.
pub(super) fn gather(seen: &Seen<'_>, request: &Request<'_>) -> Plan {
    let message = |member: usize, part: usize| {
        Message::new(seen.rank(member), Buffer::Main, request.part(request.parts, part, seen.len()))
    };
    let round = if seen.index == request.root {
        Round { receives: seen.others().map(|member| message(member, member)).collect(), ..Round::default() }
    } else {
        Round { sends: vec![message(request.root, seen.index)], ..Round::default() }
    };
    Plan { rounds: vec![round], scratch_bytes: 0 }
}

/// From everyone to everyone something else.
pub(super) fn all_to_all(seen: &Seen<'_>, request: &Request<'_>) -> Plan {
    let message = |member: usize, parts: &[Range<usize>]| {
        Message::new(seen.rank(member), Buffer::Main, request.part(parts, member, seen.len()))
    };
    let round = Round {
        sends: seen.others().map(|member| message(member, request.parts)).collect(),
        receives: seen.others().map(|member| message(member, request.arrivals)).collect(),
        folds: Vec::new(),
    };
    Plan { rounds: vec![round], scratch_bytes: 0 }
}

/// Nobody ends before all have begun. In large teams each member tells in turn the one 1, 2, 4, ... places after it,
/// and by that all that it has heard of.
pub(super) fn barrier(seen: &Seen<'_>) -> Plan {
    let message = |member: usize| Message::new(seen.rank(member), Buffer::Main, Layout::EMPTY);
    let len = seen.len();
    if len <= MEETING_MAX {
        let all: Vec<Message> = seen.others().map(message).collect();
        return Plan { rounds: vec![Round { sends: all.clone(), receives: all, folds: Vec::new() }], scratch_bytes: 0 };
    }
    let distances =
        std::iter::successors(Some(1), |distance| Some(distance * 2)).take_while(|&distance| distance < len);
    let rounds = distances.map(|distance| Round {
        sends: vec![message((seen.index + distance) % len)],
        receives: vec![message((seen.index + len - distance) % len)],
        folds: Vec::new(),
    });
    Plan { rounds: rounds.collect(), scratch_bytes: 0 }
}
