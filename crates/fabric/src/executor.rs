//! Runs plans over links.
//!
//! All messages of a round move at the same time: every link is served in turn, so that ranks that send each other more
//! than fits on the way do not wait for each other. [`Fabric::advance`] never blocks and looks at no clock.

use std::sync::Arc;

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::memory::{Main, Memory, Scratch};
use crate::message::Tags;
use crate::peer::{Peer, Pieces};
use crate::plan::{Message, Plan, Round};

/// A collective that is being done.
pub(crate) struct Run<'a> {
    plan: Arc<Plan>,
    tags: Tags,
    /// Bytes of the whole collective.
    total: u64,
    main: Main<'a>,
    scratch: Scratch,
    /// The round that it is in, and whether that round's messages have been posted.
    round: usize,
    posted: bool,
    opening: Opening,
}

/// How the first round's messages begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Opening {
    /// As all others.
    #[default]
    Plain,
    /// Only the header is received, which may announce any length.
    Announcement,
    /// The header has been received already.
    Announced,
}

/// What came of an attempt to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Everything is done.
    Done,
    /// Something moved.
    Moved,
    /// Nothing could move.
    Idle,
}

impl<'a> Run<'a> {
    pub(crate) fn new(plan: Arc<Plan>, tags: Tags, total: usize, main: Main<'a>, scratch: Scratch) -> Self {
        Self { plan, tags, total: total as u64, main, scratch, round: 0, posted: false, opening: Opening::Plain }
    }

    pub(crate) fn opening(mut self, opening: Opening) -> Self {
        self.opening = opening;
        self
    }

    pub(crate) fn into_scratch(self) -> Scratch {
        self.scratch
    }
}

impl Fabric {
    /// Moves what can be moved without waiting.
    #[inline]
    pub(crate) fn advance(&mut self, run: &mut Run<'_>) -> Result<Progress, FabricError> {
        let Run { plan, tags, total, main, scratch, round: at, posted, opening } = run;
        let mut memory = Memory { main, scratch: scratch.bytes(plan.scratch_bytes) };
        let mut moved = false;
        while let Some(round) = plan.rounds.get(*at) {
            if !*posted {
                self.post(round, *tags, *total, std::mem::take(opening))?;
                *posted = true;
            }
            let (some, open) = self.serve(round, &mut memory)?;
            moved |= some;
            if open {
                return Ok(if moved { Progress::Moved } else { Progress::Idle });
            }
            for fold in &round.folds {
                memory.fold(&mut self.pieces.folder, fold);
            }
            *posted = false;
            *at += 1;
        }
        Ok(Progress::Done)
    }

    #[inline]
    fn post(&mut self, round: &Round, tags: Tags, total: u64, opening: Opening) -> Result<(), FabricError> {
        for message in &round.sends {
            self.peer(message.rank)?.post_send(tags, message.layout.len(), total);
        }
        for message in &round.receives {
            let peer = self.peer(message.rank)?;
            match opening {
                Opening::Plain => peer.post_receive(tags, message.layout.len(), total),
                Opening::Announcement => peer.post_header(tags),
                Opening::Announced => peer.post_body(message.layout.len(), total)?,
            }
        }
        Ok(())
    }

    /// Moves what can be moved of a round. Returns whether something moved and whether something is left.
    #[inline]
    fn serve(&mut self, round: &Round, memory: &mut Memory<'_, '_>) -> Result<(bool, bool), FabricError> {
        let (mut moved, mut open) = (false, false);
        for Message { rank, buffer, layout, .. } in &round.sends {
            let peer = peer_of(&mut self.peers, *rank)?;
            if peer.is_sending() {
                moved |= peer.push(memory.source(*buffer), layout)?;
                open |= peer.is_sending();
            }
        }
        for message in &round.receives {
            let peer = peer_of(&mut self.peers, message.rank)?;
            if peer.is_receiving() {
                moved |= pull(peer, message, memory, &mut self.pieces)?;
                open |= peer.is_receiving();
            }
        }
        Ok((moved, open))
    }

    pub(crate) fn peer(&mut self, rank: usize) -> Result<&mut Peer, FabricError> {
        peer_of(&mut self.peers, rank)
    }

    pub(crate) fn open_peers(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| peer.as_ref().filter(|peer| peer.is_open()).map(|peer| (rank, peer)))
    }
}

#[inline]
fn pull(
    peer: &mut Peer,
    message: &Message,
    memory: &mut Memory<'_, '_>,
    pieces: &mut Pieces,
) -> Result<bool, FabricError> {
    let target = memory.target(message.buffer);
    match (message.combine, message.layout.as_range()) {
        (Some(combine), Some(range)) => peer.pull_combining(&mut target[range], combine, pieces),
        _ => peer.pull(target, &message.layout),
    }
}

#[inline]
fn peer_of(peers: &mut [Option<Peer>], rank: usize) -> Result<&mut Peer, FabricError> {
    let size = peers.len();
    match peers.get_mut(rank) {
        Some(Some(peer)) => Ok(peer),
        _ => Err(FabricError::Invalid(format!("there is no link to rank {rank} in a group of {size}"))),
    }
}
