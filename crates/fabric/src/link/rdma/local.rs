//! Links over RDMA between two threads of this process.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::bring_up::{Place, RdmaOptions, Role, bring_up};
use super::cards::local_cards;
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::link::Link;
use crate::local::Pair;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Links two ranks of this process, each by a port of its own: rank by rank those of this machine, in the order of their
/// addresses, and from the first one again when there are more ranks. `talk` is a connection between the two.
///
/// # Errors
/// When this machine has no RDMA, or it does not work.
pub(crate) fn local_rdma_pair(ranks: [usize; 2], talk: (Channel, Channel)) -> Result<Pair, FabricError> {
    let failed = |why: String| FabricError::Invalid(format!("no link over RDMA: {why}"));
    let (cards, problems) = local_cards().map_err(|error| failed(error.to_string()))?;
    if cards.is_empty() {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(failed(problems.join("; ")));
    }
    let [local, peer] = ranks.map(|rank| IpAddr::V4(cards[rank % cards.len()].card.address));
    let by = Instant::now() + PATIENCE;
    let side = |talk: Channel, role, local, peer| -> Result<Box<dyn Link>, String> {
        let place = Place { role, generation: 1, local, peer };
        let link = bring_up(&talk, place, RdmaOptions::new(true), by).map_err(|cause: Cause| cause.to_string())?;
        Ok(Box::new(link?))
    };
    let ends = std::thread::scope(|scope| {
        let dialer = scope.spawn(|| side(talk.1, Role::Dialer, peer, local));
        let acceptor = side(talk.0, Role::Acceptor, local, peer);
        (acceptor, dialer.join())
    });
    match ends {
        (Ok(acceptor), Ok(Ok(dialer))) => Ok((acceptor, dialer)),
        (Err(why), _) | (_, Ok(Err(why))) => Err(failed(why)),
        (_, Err(_)) => Err(failed("a thread panicked".to_owned())),
    }
}
