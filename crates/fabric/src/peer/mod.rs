//! A link with the messages that are on it: at most one in each direction at a time.

mod combine;
mod stale;

use std::io::{IoSlice, IoSliceMut};

pub(crate) use self::combine::Pieces;
use self::stale::Stale;
use crate::error::{Cause, FabricError, View};
use crate::layout::{Layout, PIECES};
use crate::link::{Cable, Interest, Link, LinkCounters, ReadAhead, Transport};
use crate::message::{HEADER_BYTES, HEADER_BYTES_BEFORE_LENGTHS, Header, Tags, decode_header};

/// The bytes that are moved in one direction of a link before the next one has its turn. What both ranks of a pair
/// exchange at the same time so stays in their caches. Calls of the system should move more.
const TURN_BYTES: usize = 64 << 10;
const TURN_BYTES_BY_CALL: usize = 512 << 10;

/// A link to another rank.
pub(crate) struct Peer {
    pub(crate) link: Box<dyn Link>,
    /// This rank and the one at the other end.
    own: usize,
    rank: usize,
    generation: u32,
    /// Whether the other side is known to have left. What came before that is received before it is an error.
    left: Option<Cause>,
    /// Messages sent so far.
    sent: u64,
    /// Messages received so far.
    received: u64,
    outgoing: Transfer,
    incoming: Transfer,
    /// Whether nothing more may be received before more has been sent.
    held_back: bool,
    /// The header that has to come, and how many of its bytes count.
    expected: [u8; HEADER_BYTES],
    compared: usize,
    /// Remains of an older generation on their way out.
    stale: Option<Box<Stale>>,
    /// Messages of older generations that have been skipped.
    skipped: u32,
}

/// A message that is partly done.
struct Transfer {
    header: [u8; HEADER_BYTES],
    /// Bytes done and to be done, header included.
    done: usize,
    total: usize,
}

impl Transfer {
    const NONE: Self = Self { header: [0; HEADER_BYTES], done: 0, total: 0 };

    #[inline]
    fn is_open(&self) -> bool {
        self.done < self.total
    }

    /// Bytes of the body that are done.
    #[inline]
    fn position(&self) -> usize {
        self.done.saturating_sub(HEADER_BYTES)
    }
}

impl Peer {
    pub(crate) fn new(own: usize, rank: usize, generation: u32, link: Box<dyn Link>) -> Self {
        Self {
            link,
            own,
            rank,
            generation,
            left: None,
            sent: 0,
            received: 0,
            outgoing: Transfer::NONE,
            incoming: Transfer::NONE,
            held_back: false,
            expected: [0; HEADER_BYTES],
            compared: HEADER_BYTES,
            stale: None,
            skipped: 0,
        }
    }

    /// The same with up to `most` bytes taken in before they are received.
    pub(crate) fn reading_ahead(self, most: usize) -> Self {
        Self { link: Box::new(ReadAhead::new(self.link, most)), ..self }
    }

    /// Remembers that the other side has left.
    pub(crate) fn note_departure(&mut self) {
        self.left = Some(Cause::Left);
    }

    /// An error when the other side is known to have left.
    #[inline]
    pub(crate) fn still_there(&self) -> Result<(), FabricError> {
        if self.left.is_none() { Ok(()) } else { Err(self.departed()) }
    }

    #[cold]
    fn departed(&self) -> FabricError {
        self.lost(self.left.clone().unwrap_or(Cause::Left))
    }

    /// Counts from the beginning again, as in a new generation.
    #[cfg(test)]
    pub(crate) fn begin_anew(&mut self, generation: u32) {
        (self.generation, self.sent, self.received) = (generation, 0, 0);
    }

    pub(crate) fn transport(&self) -> Transport {
        self.link.transport()
    }

    /// Whether each move is a call of the system.
    #[inline]
    fn is_moved_by_calls(&self) -> bool {
        self.transport() == Transport::Tcp
    }

    /// The bytes of a turn.
    #[inline]
    fn turn_bytes(&self) -> usize {
        if self.is_moved_by_calls() { TURN_BYTES_BY_CALL } else { TURN_BYTES }
    }

    pub(crate) fn cables(&self) -> Vec<Cable> {
        self.link.cables()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.link.is_encrypted()
    }

    pub(crate) fn counters(&self) -> LinkCounters {
        self.link.counters()
    }

    #[inline]
    pub(crate) fn is_sending(&self) -> bool {
        self.outgoing.is_open()
    }

    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.incoming.is_open()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_sending() || self.is_receiving()
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest { receive: self.is_receiving() && !self.held_back, send: self.is_sending() }
    }

    /// Posts a message of `length` bytes, in a collective of `total` bytes.
    #[inline]
    pub(crate) fn post_send(&mut self, tags: Tags, length: usize, total: u64) {
        let header =
            Header { generation: self.generation, tags, operation: self.sent, length: length as u64, total }.encode();
        self.sent += 1;
        self.outgoing = Transfer { header, done: 0, total: HEADER_BYTES + length };
    }

    /// Posts the receipt of a message.
    #[inline]
    pub(crate) fn post_receive(&mut self, tags: Tags, length: usize, total: u64) {
        let (generation, operation) = (self.generation, self.received);
        self.expected = Header { generation, tags, operation, length: length as u64, total }.encode();
        self.compared = HEADER_BYTES;
        self.received += 1;
        self.held_back = false;
        self.incoming = Transfer { header: [0; HEADER_BYTES], done: 0, total: HEADER_BYTES + length };
    }

    /// Posts the receipt of a header that announces any length. [`Peer::announced`] tells which.
    pub(crate) fn post_header(&mut self, tags: Tags) {
        self.post_receive(tags, 0, 0);
        self.compared = HEADER_BYTES_BEFORE_LENGTHS;
    }

    /// The header that was received last.
    pub(crate) fn announced(&self) -> View {
        decode_header(&self.incoming.header)
    }

    /// Posts the receipt of the body after a header that was received on its own.
    pub(crate) fn post_body(&mut self, length: usize, total: u64) -> Result<(), FabricError> {
        let announced = self.announced();
        self.incoming.total = HEADER_BYTES + length;
        if announced.length == Some(length as u64) && announced.total == Some(total) {
            return Ok(());
        }
        let what = format!("its broadcast of {total} bytes begins with another message than one of {length} bytes");
        Err(self.lost(Cause::corrupt(what)))
    }

    /// Sends what there is room for. True when something moved.
    #[inline]
    pub(crate) fn push(&mut self, source: &[u8], layout: &Layout) -> Result<bool, FabricError> {
        self.still_there()?;
        let turn = self.turn_bytes();
        // One call would otherwise take all that the system has room for.
        let most = if self.is_moved_by_calls() { turn } else { usize::MAX };
        let message = &mut self.outgoing;
        let before = message.done;
        while message.is_open() && message.done - before < turn {
            let header = &message.header[message.done.min(HEADER_BYTES)..];
            let position = message.position();
            let taken = match layout.as_range() {
                Some(range) => {
                    let begin = range.start + position;
                    let body = &source[begin..range.end.min(begin.saturating_add(most))];
                    self.link.try_send(&[IoSlice::new(header), IoSlice::new(body)])
                }
                None => {
                    let mut pieces = [IoSlice::new(&[]); PIECES];
                    pieces[0] = IoSlice::new(header);
                    let count = 1 + layout.pieces(source, position, &mut pieces[1..]);
                    self.link.try_send(&pieces[..count])
                }
            };
            let taken = taken.map_err(|cause| FabricError::PeerLost { rank: self.rank, cause })?;
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
    #[inline]
    pub(crate) fn pull(&mut self, target: &mut [u8], layout: &Layout) -> Result<bool, FabricError> {
        let turn = self.turn_bytes();
        let mut moved = 0;
        while self.incoming.is_open() && moved < turn {
            let taken = self.pull_once(target, layout).map_err(|cause| self.lost(cause))?;
            if taken == 0 {
                break;
            }
            moved += taken;
            if self.has_new_header(taken) && self.verify()? == Verdict::Stale {
                let mut early = vec![0; self.incoming.position()];
                layout.read(target, &mut early);
                self.put_back(&early);
            }
        }
        if moved == 0 {
            self.still_there()?;
        }
        Ok(moved > 0)
    }

    #[inline]
    fn pull_once(&mut self, target: &mut [u8], layout: &Layout) -> Result<usize, Cause> {
        let Transfer { header, done, .. } = &mut self.incoming;
        let position = done.saturating_sub(HEADER_BYTES);
        let header = IoSliceMut::new(&mut header[(*done).min(HEADER_BYTES)..]);
        let taken = if let Some(range) = layout.as_range() {
            let body = IoSliceMut::new(&mut target[range.start + position..range.end]);
            receive(&mut *self.link, &mut self.stale, &mut [header, body])?
        } else {
            let mut pieces: [IoSliceMut<'_>; PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            pieces[0] = header;
            let count = 1 + layout.pieces_mut(target, position, &mut pieces[1..]);
            receive(&mut *self.link, &mut self.stale, &mut pieces[..count])?
        };
        *done += taken;
        Ok(taken)
    }

    /// Whether the header became complete with the last bytes taken.
    #[inline]
    fn has_new_header(&self, taken: usize) -> bool {
        self.incoming.done >= HEADER_BYTES && self.incoming.done - taken < HEADER_BYTES
    }

    #[inline]
    fn verify(&mut self) -> Result<Verdict, FabricError> {
        if self.incoming.header[..self.compared] == self.expected[..self.compared] {
            return Ok(Verdict::Expected);
        }
        self.judge()
    }

    /// What to do with a message that is not the expected one.
    #[cold]
    fn judge(&mut self) -> Result<Verdict, FabricError> {
        let theirs = decode_header(&self.incoming.header);
        let older = theirs.generation < self.generation && self.skipped < stale::COUNT_MAX;
        if older && stale::begin(&mut self.stale, &theirs) {
            self.skipped += 1;
            return Ok(Verdict::Stale);
        }
        let mut ours = decode_header(&self.expected);
        if self.compared < HEADER_BYTES {
            (ours.length, ours.total) = (None, None);
        }
        Err(FabricError::Mismatch { rank: self.rank, seen_by: self.own, ours, theirs })
    }

    /// Gives back what came along with a stale header, and begins the message anew.
    #[cold]
    fn put_back(&mut self, early: &[u8]) {
        if let Some(stale) = &mut self.stale {
            stale.put_back(early);
        }
        self.incoming.done = 0;
    }

    fn lost(&self, cause: Cause) -> FabricError {
        FabricError::PeerLost { rank: self.rank, cause }
    }
}

/// What a header is found to be.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Expected,
    /// Of an older generation, to be skipped.
    Stale,
}

/// Fills `parts` with what comes after what is to be skipped.
#[inline]
fn receive(link: &mut dyn Link, stale: &mut Option<Box<Stale>>, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
    if stale.is_none() { link.try_recv(parts) } else { stale::receive(link, stale, parts) }
}
