//! Which way a collective is done.

use super::reduce::Reduction;
use super::{Plan, Request, Seen, Tuning, chain, exchange, reduce, tree};
use crate::element::Wire;
use crate::message::Kind;

/// What this member does in a collective. All members get plans that fit together when their requests and tuning are
/// the same. A member alone has nothing to do.
///
/// `request` has been checked: its parts are as many as the members, and within a row.
pub(crate) fn plan(seen: &Seen<'_>, request: &Request<'_>, tuning: &Tuning) -> Plan {
    if seen.len() < 2 {
        return Plan::default();
    }
    match request.tags.kind {
        Kind::Barrier => exchange::barrier(seen),
        Kind::Broadcast => tree::broadcast(seen, request, tuning),
        Kind::AllGather => exchange::all_gather(seen, request),
        Kind::Gather => exchange::gather(seen, request),
        Kind::AllToAll => exchange::all_to_all(seen, request),
        Kind::ReduceScatter => match Reduction::of(request) {
            Some(reduction) => reduce::reduce_scatter(seen, &reduction, request.parts, tuning),
            None => Plan::default(),
        },
        Kind::AllReduce => match Reduction::of(request) {
            Some(reduction) => all_reduce(seen, &reduction, algorithm(seen, request, tuning), tuning),
            None => Plan::default(),
        },
        // These are single messages, which need no plan.
        Kind::Send => Plan::default(),
    }
}

/// The ways of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Two members send each other the whole, and combine as it comes.
    Pair,
    /// Everyone gets everyone's contribution.
    OneShot,
    /// Each reduces a part.
    Parts,
    /// Partial results travel up the team's order, the result travels down.
    Chain,
}

fn algorithm(seen: &Seen<'_>, request: &Request<'_>, tuning: &Tuning) -> Algorithm {
    let bytes = request.width * request.element_bytes();
    let exact = request.tags.wire == Wire::Exact;
    if seen.len() == 2 && bytes <= tuning.pair_bytes_max {
        return if exact { Algorithm::Pair } else { Algorithm::OneShot };
    }
    // Partial results would travel uncompressed, so that a chain is no way to save bytes.
    if exact && bytes >= tuning.chain_bytes_min && seen.suits_chain() {
        return Algorithm::Chain;
    }
    let received = bytes.saturating_mul(seen.len() - 1);
    if received <= tuning.one_shot_bytes_max { Algorithm::OneShot } else { Algorithm::Parts }
}

pub(super) fn all_reduce(seen: &Seen<'_>, reduction: &Reduction, algorithm: Algorithm, tuning: &Tuning) -> Plan {
    match algorithm {
        Algorithm::Pair => reduce::pair(seen, reduction),
        Algorithm::OneShot => reduce::one_shot(seen, reduction),
        Algorithm::Parts => reduce::by_parts(seen, reduction, tuning),
        Algorithm::Chain => chain::all_reduce(seen, reduction, tuning),
    }
}
