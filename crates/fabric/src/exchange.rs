//! Messages on several links at once.
//!
//! An operation first posts what it sends and receives on each link, and then drives all links until everything posted
//! is done. As every link is served in turn, ranks that send each other more than fits on the way do not wait for each
//! other.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use crate::error::{Cause, FabricError, View};
use crate::fabric::Fabric;
use crate::layout::{Layout, PIECES};
use crate::link::{Cable, Interest, Link, LinkCounters, Transport, Watched};
use crate::message::{HEADER_BYTES, Header, Kind, decode};
use crate::wait::{Advice, Wait};

/// A rank that sleeps on a link through memory looks this often whether the other side is alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a rank that still has things to send sleeps on one link while others could move.
const NAP: Duration = Duration::from_micros(200);
/// The bytes that are moved in one direction of a link before the next one has its turn. What both ranks of a pair
/// exchange at the same time so stays in their caches.
const TURN_BYTES: usize = 64 << 10;

/// A link with the state of the message that is on it in each direction.
pub(crate) struct Peer {
    link: Box<dyn Link>,
    /// Whether the other side is known to have left. What came before that is received before it is an error.
    lost: Option<Cause>,
    /// Messages sent so far.
    sent: u64,
    /// Messages received so far.
    received: u64,
    outgoing: Message,
    incoming: Message,
    expected: View,
}

/// A message that is partly done.
struct Message {
    header: [u8; HEADER_BYTES],
    layout: Layout,
    /// Bytes done and to be done, header included.
    done: usize,
    total: usize,
}

impl Message {
    const NONE: Self = Self { header: [0; HEADER_BYTES], layout: Layout::EMPTY, done: 0, total: 0 };

    fn is_open(&self) -> bool {
        self.done < self.total
    }
}

/// The buffers that an operation works on.
pub(crate) enum Memory<'a> {
    /// Sends from and receives into the same buffer, at different places.
    Shared(&'a mut [u8]),
    /// Sends from one and receives into another.
    Apart { from: &'a [u8], to: &'a mut [u8] },
}

impl Memory<'_> {
    fn source(&self) -> &[u8] {
        match self {
            Self::Shared(buffer) => buffer,
            Self::Apart { from, .. } => from,
        }
    }

    fn target(&mut self) -> &mut [u8] {
        match self {
            Self::Shared(buffer) => buffer,
            Self::Apart { to, .. } => to,
        }
    }
}

impl Peer {
    pub(crate) fn new(link: Box<dyn Link>) -> Self {
        let expected = View { generation: 0, operation: 0, kind: None, length: None };
        Self { link, lost: None, sent: 0, received: 0, outgoing: Message::NONE, incoming: Message::NONE, expected }
    }

    pub(crate) fn transport(&self) -> Transport {
        self.link.transport()
    }

    pub(crate) fn cables(&self) -> Vec<Cable> {
        self.link.cables()
    }

    pub(crate) fn counters(&self) -> LinkCounters {
        self.link.counters()
    }

    fn still_there(&self) -> Result<(), Cause> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    fn is_open(&self) -> bool {
        self.outgoing.is_open() || self.incoming.is_open()
    }

    fn interest(&self) -> Interest {
        Interest { receive: self.incoming.is_open(), send: self.outgoing.is_open() }
    }

    /// Sends what there is room for. True when something moved.
    fn push(&mut self, source: &[u8]) -> Result<bool, Cause> {
        self.still_there()?;
        let message = &mut self.outgoing;
        let before = message.done;
        while message.is_open() && message.done - before < TURN_BYTES {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            if message.done < HEADER_BYTES {
                pieces[0] = IoSlice::new(&message.header[message.done..]);
                count = 1;
            }
            let position = message.done.saturating_sub(HEADER_BYTES);
            count += message.layout.pieces(source, position, &mut pieces[count..]);
            let taken = self.link.try_send(&pieces[..count])?;
            if taken == 0 {
                break;
            }
            message.done += taken;
        }
        Ok(message.done > before)
    }

    /// Receives what has come. True when something moved.
    ///
    /// Header and body are received in one go. A body whose header then turns out to be wrong leaves the caller's
    /// buffer in disorder, along with an error.
    fn pull(&mut self, target: &mut [u8], rank: usize, own: usize) -> Result<bool, FabricError> {
        let before = self.incoming.done;
        while self.incoming.is_open() && self.incoming.done - before < TURN_BYTES {
            let Message { header, layout, done, .. } = &mut self.incoming;
            let had_header = *done >= HEADER_BYTES;
            let mut pieces: [IoSliceMut<'_>; PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let mut count = 0;
            if !had_header {
                pieces[0] = IoSliceMut::new(&mut header[*done..]);
                count = 1;
            }
            let position = done.saturating_sub(HEADER_BYTES);
            count += layout.pieces_mut(target, position, &mut pieces[count..]);
            let taken =
                self.link.try_recv(&mut pieces[..count]).map_err(|cause| FabricError::PeerLost { rank, cause })?;
            if taken == 0 {
                break;
            }
            *done += taken;
            if !had_header && *done >= HEADER_BYTES {
                self.verify(rank, own)?;
            }
        }
        let moved = self.incoming.done > before;
        if !moved {
            self.still_there().map_err(|cause| FabricError::PeerLost { rank, cause })?;
        }
        Ok(moved)
    }

    fn verify(&self, rank: usize, own: usize) -> Result<(), FabricError> {
        let (ours, theirs) = (self.expected, decode(&self.incoming.header));
        let fits = View { length: ours.length.and(theirs.length), ..theirs } == ours;
        if fits { Ok(()) } else { Err(FabricError::Mismatch { rank, seen_by: own, ours, theirs }) }
    }
}

impl Fabric {
    /// Posts a message to a rank.
    pub(crate) fn post_send(&mut self, to: usize, kind: Kind, layout: Layout) -> Result<(), FabricError> {
        let generation = self.generation;
        let peer = self.peer(to)?;
        let length = layout.len();
        let header = Header { generation, kind, operation: peer.sent, length: length as u64 }.encode();
        peer.sent += 1;
        peer.outgoing = Message { header, layout, done: 0, total: HEADER_BYTES + length };
        Ok(())
    }

    /// Posts the receipt of a message of known length.
    pub(crate) fn post_recv(&mut self, from: usize, kind: Kind, layout: Layout) -> Result<(), FabricError> {
        self.post_header(from, kind, layout, Some(layout.len() as u64))
    }

    /// Posts the receipt of a header. [`Fabric::announced`] tells the length of what follows.
    pub(crate) fn post_recv_header(&mut self, from: usize, kind: Kind) -> Result<(), FabricError> {
        self.post_header(from, kind, Layout::EMPTY, None)
    }

    /// The length in the last header that was received from a rank.
    pub(crate) fn announced(&mut self, from: usize) -> Result<u64, FabricError> {
        Ok(decode(&self.peer(from)?.incoming.header).length.unwrap_or(0))
    }

    /// Posts the receipt of the body after a header that was received on its own.
    pub(crate) fn post_recv_body(&mut self, from: usize, layout: Layout) -> Result<(), FabricError> {
        let message = &mut self.peer(from)?.incoming;
        *message = Message { header: message.header, layout, done: HEADER_BYTES, total: HEADER_BYTES + layout.len() };
        Ok(())
    }

    fn post_header(&mut self, from: usize, kind: Kind, layout: Layout, length: Option<u64>) -> Result<(), FabricError> {
        let generation = self.generation;
        let peer = self.peer(from)?;
        peer.expected = View { generation, operation: peer.received, kind: Some(kind), length };
        peer.received += 1;
        let total = HEADER_BYTES + layout.len();
        peer.incoming = Message { header: [0; HEADER_BYTES], layout, done: 0, total };
        Ok(())
    }

    fn peer(&mut self, rank: usize) -> Result<&mut Peer, FabricError> {
        let (own, size) = (self.rank, self.peers.len());
        self.peers
            .get_mut(rank)
            .and_then(Option::as_mut)
            .ok_or_else(|| FabricError::Invalid(format!("rank {own} has no link to rank {rank} in a group of {size}")))
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
        let mut wait = Wait::start();
        while !self.peer(from)?.link.is_readable().map_err(lost)? {
            self.health.check()?;
            match wait.advise(&self.patience, timeout) {
                Advice::Poll => {}
                Advice::Sleep(at_most) => {
                    let peer = self.peer(from)?;
                    let interest = Interest { receive: true, send: false };
                    peer.still_there().map_err(lost)?;
                    if !peer.link.rest(interest, at_most.min(CHECK_INTERVAL)).map_err(lost)? {
                        self.check(from);
                    }
                }
                Advice::GiveUp(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Looks whether a rank has left, which its link need not show.
    fn check(&mut self, rank: usize) {
        if self.health.has_left(rank)
            && let Some(peer) = &mut self.peers[rank]
        {
            peer.lost = Some(Cause::Left);
        }
    }

    /// Works until everything posted is done. An error breaks the fabric.
    pub(crate) fn drive(&mut self, mut memory: Memory<'_>) -> Result<(), FabricError> {
        let result = self.drive_all(&mut memory).map_err(|error| self.health.explain(error));
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }

    fn drive_all(&mut self, memory: &mut Memory<'_>) -> Result<(), FabricError> {
        let mut wait: Option<Wait> = None;
        loop {
            let (moved, open) = self.progress(memory)?;
            if moved && let Some(wait) = wait.take() {
                wait.end(&mut self.patience);
            }
            if !open {
                return Ok(());
            }
            if moved {
                continue;
            }
            self.health.check()?;
            match wait.get_or_insert_with(Wait::start).advise(&self.patience, self.patience.deadline) {
                Advice::Poll => {}
                Advice::Sleep(at_most) => {
                    self.health.set_waiting_for(self.open_peers().next().map(|(rank, _)| rank));
                    let slept = self.sleep(at_most.min(CHECK_INTERVAL));
                    self.health.set_waiting_for(None);
                    slept?;
                }
                Advice::GiveUp(after) => {
                    return Err(self.health.blame(self.open_peers().map(|(rank, _)| rank), after));
                }
            }
        }
    }

    /// Moves what can be moved on all links. Returns whether something moved and whether something is left to do.
    fn progress(&mut self, memory: &mut Memory<'_>) -> Result<(bool, bool), FabricError> {
        let (mut moved, mut open) = (false, false);
        let size = self.peers.len();
        // Each rank starts with the one after it, so that not all of them write to the same one at once.
        for rank in (self.rank + 1..size).chain(0..self.rank) {
            let Some(peer) = self.peers[rank].as_mut().filter(|peer| peer.is_open()) else { continue };
            if peer.outgoing.is_open() {
                moved |= peer.push(memory.source()).map_err(|cause| FabricError::PeerLost { rank, cause })?;
            }
            if peer.incoming.is_open() {
                moved |= peer.pull(memory.target(), rank, self.rank)?;
            }
            open |= peer.is_open();
        }
        Ok((moved, open))
    }

    fn open_peers(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| peer.as_ref().filter(|peer| peer.is_open()).map(|peer| (rank, peer)))
    }

    /// Sleeps until something may have moved.
    ///
    /// A rank that has sent everything needs all the links that are still open, so it may sleep on any one of them: the
    /// others' data waits in the meantime. A rank that has something left to send must keep all links moving, as others
    /// may be waiting for room, too; if it cannot watch all links at once, it takes naps.
    fn sleep(&mut self, at_most: Duration) -> Result<(), FabricError> {
        let sending = self.open_peers().any(|(_, peer)| peer.outgoing.is_open());
        let mut watched = Watched::new();
        let (mut open, mut sleeper) = (0, None);
        for (rank, peer) in self.open_peers() {
            let before = watched.len();
            peer.link.watch(peer.interest(), &mut watched);
            open += 1;
            if watched.len() == before && (sleeper.is_none() || sending && peer.outgoing.is_open()) {
                sleeper = Some((rank, peer.interest()));
            }
        }
        let nap = if sending && open > 1 { NAP } else { CHECK_INTERVAL };
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
            (0..self.peers.len()).for_each(|rank| self.check(rank));
        }
        Ok(())
    }
}
