//! How a rank waits for others: it spins, sleeps, and gives up.

use std::time::Duration;

use crate::error::FabricError;
use crate::executor::{Progress, Run};
use crate::fabric::Fabric;
use crate::link::{Interest, Watched};
use crate::peer::Peer;
use crate::wait::{Advice, Wait};

/// A rank that sleeps looks this often whether the others are alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a rank that still has things to send sleeps on one link while others could move.
const NAP: Duration = Duration::from_micros(200);

impl Fabric {
    /// Works until everything is done. An error breaks the fabric.
    pub(crate) fn complete(&mut self, run: &mut Run<'_>) -> Result<(), FabricError> {
        self.work(run).map_err(|error| {
            let error = self.health.explain(error);
            self.broken = Some(error.clone());
            error
        })
    }

    #[inline]
    fn work(&mut self, run: &mut Run<'_>) -> Result<(), FabricError> {
        let mut wait = Wait::new();
        loop {
            match self.advance(run)? {
                Progress::Done => break,
                Progress::Moved => wait.end(&mut self.patience),
                Progress::Idle => self.idle(&mut wait)?,
            }
        }
        wait.end(&mut self.patience);
        Ok(())
    }

    /// Nothing could move.
    #[inline]
    fn idle(&mut self, wait: &mut Wait) -> Result<(), FabricError> {
        if self.health.is_troubled() {
            self.health.check()?;
        }
        if self.reads_ahead && self.read_ahead() {
            return Ok(());
        }
        let shares_core = || self.open_peers().any(|(_, peer)| peer.link.shares_core());
        match wait.advise(&self.patience, self.patience.deadline, shares_core) {
            Advice::Poll => Ok(()),
            Advice::Sleep(at_most) => {
                self.health.set_waiting_for(self.open_peers().next().map(|(rank, _)| rank));
                let slept = self.sleep(at_most.min(CHECK_INTERVAL));
                self.health.set_waiting_for(None);
                slept
            }
            Advice::GiveUp(after) => Err(self.health.blame(self.open_peers().map(|(rank, _)| rank), after)),
        }
    }

    /// Waits until a message has begun to come from a rank. False when none has within `timeout`, which is no error: a
    /// rank with nothing to do may so wait for as long as it likes. Does not count as waiting in [`Fabric::waited`].
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] when that rank is gone.
    pub fn wait_for(&mut self, from: usize, timeout: Duration) -> Result<bool, FabricError> {
        self.check_usable()?;
        let result = self.await_message(from, timeout).map_err(|error| self.health.explain(error));
        if let Err(error @ FabricError::PeerLost { .. }) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    fn await_message(&mut self, from: usize, timeout: Duration) -> Result<bool, FabricError> {
        let lost = |cause| FabricError::PeerLost { rank: from, cause };
        let mut wait = Wait::new();
        while !self.peer(from)?.link.is_readable().map_err(lost)? {
            self.health.check()?;
            let shares_core = || self.peers[from].as_ref().is_some_and(|peer| peer.link.shares_core());
            match wait.advise(&self.patience, timeout, shares_core) {
                Advice::Poll => {}
                Advice::Sleep(at_most) => {
                    let peer = self.peer(from)?;
                    let interest = Interest { receive: true, send: false };
                    peer.still_there()?;
                    if !peer.link.rest(interest, at_most.min(CHECK_INTERVAL)).map_err(lost)? {
                        self.look_after(from);
                    }
                }
                Advice::GiveUp(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// From now on, up to `most` bytes that come from a rank are taken in while this rank waits for something else, so that
    /// the other rank can go on with what this one may be waiting for. Without that, messages may be on their way that
    /// links take in by themselves, which is little. Only operations that block do so.
    ///
    /// # Errors
    /// [`FabricError::Invalid`] when there is no link to that rank.
    pub fn set_read_ahead(&mut self, from: usize, most: usize) -> Result<(), FabricError> {
        self.peer(from)?;
        if let Some(peer) = self.peers[from].take() {
            self.peers[from] = Some(peer.reading_ahead(most));
        }
        self.reads_ahead = true;
        Ok(())
    }

    /// True when something was taken in.
    fn read_ahead(&mut self) -> bool {
        self.peers.iter_mut().flatten().any(|peer| peer.link.read_ahead())
    }

    /// Those of which nothing is awaited now, but taken in ahead.
    fn peers_ahead(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let peers = self.peers.iter().enumerate().filter(|_| self.reads_ahead);
        let peers = peers.filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)));
        peers.filter(|(_, peer)| !peer.is_open() && peer.link.can_read_ahead())
    }

    /// Looks whether a rank has left, which its link need not show.
    pub(crate) fn look_after(&mut self, rank: usize) {
        if self.health.has_left(rank)
            && let Some(peer) = &mut self.peers[rank]
        {
            peer.note_departure();
        }
    }

    /// Sleeps until something may have moved.
    ///
    /// A rank that has sent everything needs all the links that are still open, so it may sleep on any one of them: the
    /// others' data waits in the meantime. A rank that has something left to send must keep all links moving, as others
    /// may be waiting for room, too; if it cannot watch all links at once, it takes naps. The same goes for a rank that reads
    /// ahead on other links.
    fn sleep(&mut self, at_most: Duration) -> Result<(), FabricError> {
        let sending = self.open_peers().any(|(_, peer)| peer.is_sending());
        let mut watched = Watched::new();
        let (mut open, mut sleeper) = (0, None);
        for (rank, peer) in self.open_peers().chain(self.peers_ahead()) {
            let mut interest = peer.interest();
            interest.receive |= peer.link.can_read_ahead();
            let before = watched.len();
            peer.link.watch(interest, &mut watched);
            open += 1;
            if watched.len() == before && (sleeper.is_none() || sending && peer.is_sending()) {
                sleeper = Some((rank, interest));
            }
        }
        let nap = if (sending || self.peers_ahead().next().is_some()) && open > 1 { NAP } else { CHECK_INTERVAL };
        let woken = match sleeper {
            Some((rank, interest)) if watched.is_empty() || sending => {
                let link = &mut self.peer(rank)?.link;
                let rested = link.rest(interest, at_most.min(nap));
                rested.map_err(|cause| FabricError::PeerLost { rank, cause })?
            }
            _ => {
                let slept = watched.wait(at_most.min(CHECK_INTERVAL));
                slept.map_err(|cause| FabricError::io("cannot wait for other ranks", cause.into_io()))?
            }
        };
        if !woken {
            (0..self.peers.len()).for_each(|rank| self.look_after(rank));
        }
        Ok(())
    }
}
