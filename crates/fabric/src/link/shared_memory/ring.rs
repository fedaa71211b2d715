//! How two sides of a link through memory talk: one ring of lines in each direction, and a bell for each side.
//!
//! A ring has one writer and one reader. The writer puts down segments of up to [`SEGMENT_BYTES`] bytes. A segment begins
//! on a new line with a flag of eight bytes, and its bytes follow without gaps, around the end of the ring if need be. The
//! flag says where in the stream of lines the segment lies, and how long it is. It is written last, so that a reader
//! which polls it finds a small message in the very cache line that told it of the message, and the bytes of a large one
//! in one piece behind it, without further flags.
//!
//! Bytes of old segments must not pass for flags. So before a writer shows a segment, it clears the flag of the line that
//! follows, where the next segment will begin. One line of the ring is kept free for that.
//!
//! The reader tells by its `tail` which lines are free again. A writer looks at it only when it knows of too few, and in
//! a ring that is much longer than a message that is seldom.
//!
//! A side that has to sleep says in `waiting` what for, looks once more, and then sleeps on its `bell`. The other side
//! looks at `waiting` after each move, and rings. Barriers on both sides make sure that at least one sees the other.
//!
//! Each side keeps its own copy of its position, and believes of what the other side wrote only what can be. Anything
//! else is an error: a broken or hostile neighbour can make this side fail or read wrong bytes, never more.
//!
//! All of this is written for any [`Board`], so that the model checker runs the very code that runs over real memory.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Cause;
use crate::link::Interest;

/// Two lines of most processors, as they fetch them in pairs, and one of Apple's.
pub(super) const LINE_BYTES: usize = 128;
/// What a flag takes of the first line of a segment.
pub(super) const FLAG_BYTES: usize = 8;
/// What a segment has on its first line.
const FIRST_BYTES: usize = LINE_BYTES - FLAG_BYTES;
/// The most bytes of one segment: what the two sides of an exchange move in turns, so that it is still in the caches.
pub(super) const SEGMENT_BYTES: usize = 64 << 10;

/// Bits of `waiting`.
const FOR_DATA: u32 = 1;
const FOR_ROOM: u32 = 2;

/// A number in memory that both sides reach.
pub(super) trait Word<T> {
    fn load(&self, ordering: Ordering) -> T;
    fn store(&self, value: T, ordering: Ordering);
}

/// One direction's memory.
pub(super) trait Board {
    type Flag: Word<u64>;
    type Position: Word<u32>;

    /// The number of lines, a power of two.
    fn lines(&self) -> u32;

    /// The flag of the line at a position. Positions count on, around the ring.
    fn flag(&self, position: u32) -> &Self::Flag;

    /// The first position that the reader still needs; moved by the reader.
    fn tail(&self) -> &Self::Position;

    /// Writes bytes of the segment that begins at `position`, from its byte `offset` on.
    fn copy_in(&self, position: u32, offset: usize, bytes: &[u8]);

    /// Reads bytes of the segment that begins at `position`, from its byte `offset` on.
    fn copy_out(&self, position: u32, offset: usize, bytes: &mut [u8]);
}

/// How one side sleeps.
pub(super) trait Sleeper {
    type Word: Word<u32>;

    /// What it waits for, or 0 when it is awake.
    fn waiting(&self) -> &Self::Word;

    /// Counts the times that the other side has rung.
    fn bell(&self) -> &Self::Word;

    /// Sleeps while the bell is at `seen`, at most for `at_most`.
    fn sleep(&self, seen: u32, at_most: Duration) -> Result<(), Cause>;

    /// Wakes who sleeps.
    fn wake(&self);

    /// Remembers, for the other side to see, which core this side runs on.
    fn note_core(&self);

    /// Puts all that came before in order with all that comes after, for both sides.
    fn barrier();
}

/// The lines of a segment.
fn lines_for(bytes: usize) -> u32 {
    // At most a segment, which is far below 2^32.
    (bytes + FLAG_BYTES).div_ceil(LINE_BYTES) as u32
}

/// What a flag says. Never 0, as segments are never empty.
fn flag_of(position: u32, bytes: usize) -> u64 {
    u64::from(position) << 32 | bytes as u64
}

/// The side that puts segments into a ring.
#[derive(Default)]
pub(super) struct Writer {
    /// Where the next segment begins.
    head: u32,
    /// The reader's tail, when last looked.
    tail_seen: u32,
}

impl Writer {
    /// Writes as much of `parts` as there is room for, as one segment. Returns the number of bytes.
    pub(super) fn write(&mut self, board: &impl Board, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        let wanted = parts.iter().map(|part| part.len()).sum::<usize>().min(SEGMENT_BYTES);
        if wanted == 0 {
            return Ok(0);
        }
        let mut room = self.room_known(board);
        if room < lines_for(wanted) {
            room = self.look_for_room(board)?;
        }
        if room == 0 {
            return Ok(0);
        }
        let bytes = wanted.min(room as usize * LINE_BYTES - FLAG_BYTES);
        self.put(board, parts, bytes);
        Ok(bytes)
    }

    /// Writes the first `bytes` bytes of `parts` as one segment, for which there is room.
    fn put(&mut self, board: &impl Board, parts: &[IoSlice<'_>], bytes: usize) {
        // The first line is the one that the reader polls: it is touched once, when all others are done.
        let mut first = [0; FIRST_BYTES];
        let mut offset = 0;
        for part in parts {
            let part = &part[..part.len().min(bytes - offset)];
            let on_first = part.len().min(FIRST_BYTES.saturating_sub(offset));
            let (near, far) = part.split_at(on_first);
            if !near.is_empty() {
                first[offset..offset + near.len()].copy_from_slice(near);
            }
            if !far.is_empty() {
                board.copy_in(self.head, offset + near.len(), far);
            }
            offset += part.len();
        }
        let next = self.head.wrapping_add(lines_for(bytes));
        board.flag(next).store(0, Ordering::Relaxed);
        // What lies behind a short segment on its line is nobody's, and a copy of fixed length is faster.
        board.copy_in(self.head, 0, &first);
        board.flag(self.head).store(flag_of(self.head, bytes), Ordering::Release);
        self.head = next;
    }

    /// Lines that can be written, by what is known of the reader. One line stays free for the next flag.
    fn room_known(&self, board: &impl Board) -> u32 {
        board.lines() - 1 - self.head.wrapping_sub(self.tail_seen)
    }

    /// Looks at the reader's position.
    fn look_for_room(&mut self, board: &impl Board) -> Result<u32, Cause> {
        let tail = board.tail().load(Ordering::Acquire);
        let used = self.head.wrapping_sub(tail);
        if used >= board.lines() {
            return Err(Cause::corrupt(format!("{used} lines left unread of a ring of {}", board.lines())));
        }
        self.tail_seen = tail;
        Ok(self.room_known(board))
    }

    /// Whether there is so much room that it is worth while to wake up for it.
    fn has_room(&mut self, board: &impl Board) -> Result<bool, Cause> {
        Ok(self.look_for_room(board)? >= board.lines() / 2)
    }

    #[cfg(test)]
    pub(super) fn at(position: u32) -> Self {
        Self { head: position, tail_seen: position }
    }
}

/// The side that takes segments out of a ring.
#[derive(Default)]
pub(super) struct Reader {
    /// Where the current or next segment begins.
    tail: u32,
    /// The bytes of the current segment; 0 when it has not been seen yet.
    bytes: usize,
    /// How many of them have been read.
    done: usize,
}

impl Reader {
    /// The bytes of the current segment that have not been read yet.
    pub(super) fn available(&mut self, board: &impl Board) -> Result<usize, Cause> {
        if self.bytes == 0 {
            let flag = board.flag(self.tail).load(Ordering::Acquire);
            if flag == 0 {
                return Ok(0);
            }
            let bytes = (flag & u64::from(u32::MAX)) as usize;
            let is_possible = (1..=SEGMENT_BYTES).contains(&bytes) && lines_for(bytes) < board.lines();
            if !is_possible || flag != flag_of(self.tail, bytes) {
                return Err(Cause::corrupt(format!("flag {flag:#x} in the ring at line {:#x}", self.tail)));
            }
            self.bytes = bytes;
        }
        Ok(self.bytes - self.done)
    }

    /// Fills `parts` from the current segment. Returns the number of bytes.
    pub(super) fn read(&mut self, board: &impl Board, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        let mut left = self.available(board)?;
        let start = self.done;
        for part in parts {
            let count = part.len().min(left);
            if count > 0 {
                board.copy_out(self.tail, self.done, &mut part[..count]);
            }
            self.done += count;
            left -= count;
        }
        Ok(self.done - start)
    }

    /// Gives the lines of a segment back that has been read to its end. Returns whether a writer that sleeps should hear
    /// of it.
    ///
    /// That is each time that a quarter of the ring is done. Who sleeps for room found more than half of the ring used;
    /// when the last quarter's bound among these is passed, there is less than a quarter left.
    fn release(&mut self, board: &impl Board) -> bool {
        if self.bytes == 0 || self.done < self.bytes {
            return false;
        }
        let quarter = board.lines() / 4;
        let before = self.tail / quarter;
        self.tail = self.tail.wrapping_add(lines_for(self.bytes));
        (self.bytes, self.done) = (0, 0);
        board.tail().store(self.tail, Ordering::Release);
        self.tail / quarter != before
    }

    #[cfg(test)]
    pub(super) fn at(position: u32) -> Self {
        Self { tail: position, ..Self::default() }
    }
}

/// One side of a pair: it writes one ring and reads the other.
#[derive(Default)]
pub(super) struct Side {
    pub(super) writer: Writer,
    pub(super) reader: Reader,
}

/// What a side works on.
pub(super) struct Boards<'a, B, S> {
    /// The ring that it writes.
    pub(super) out: &'a B,
    /// The ring that it reads.
    pub(super) into: &'a B,
    /// How it sleeps itself.
    pub(super) own: &'a S,
    /// How the other side sleeps.
    pub(super) other: &'a S,
}

impl Side {
    pub(super) fn send<B: Board, S: Sleeper>(
        &mut self,
        boards: &Boards<'_, B, S>,
        parts: &[IoSlice<'_>],
    ) -> Result<usize, Cause> {
        let count = self.writer.write(boards.out, parts)?;
        if count > 0 {
            ring(boards, FOR_DATA);
        }
        Ok(count)
    }

    pub(super) fn receive<B: Board, S: Sleeper>(
        &mut self,
        boards: &Boards<'_, B, S>,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Cause> {
        let count = self.reader.read(boards.into, parts)?;
        if self.reader.release(boards.into) {
            ring(boards, FOR_ROOM);
        }
        Ok(count)
    }

    /// Sleeps until there may be something to do, at most for `at_most`. False when there is nothing.
    pub(super) fn rest<B: Board, S: Sleeper>(
        &mut self,
        boards: &Boards<'_, B, S>,
        interest: Interest,
        at_most: Duration,
    ) -> Result<bool, Cause> {
        let what = if interest.receive { FOR_DATA } else { 0 } | if interest.send { FOR_ROOM } else { 0 };
        let seen = boards.own.bell().load(Ordering::Acquire);
        boards.own.waiting().store(what, Ordering::Relaxed);
        // Either the other side sees `waiting` after its move, or this side sees the move after having set it.
        S::barrier();
        if !self.is_ready(boards, interest)? {
            boards.own.sleep(seen, at_most)?;
            boards.own.note_core();
        }
        boards.own.waiting().store(0, Ordering::Relaxed);
        self.is_ready(boards, interest)
    }

    fn is_ready<B: Board, S: Sleeper>(&mut self, boards: &Boards<'_, B, S>, interest: Interest) -> Result<bool, Cause> {
        Ok(interest.receive && self.reader.available(boards.into)? > 0
            || interest.send && self.writer.has_room(boards.out)?)
    }
}

/// Wakes the other side up if it waits for what has just been done.
fn ring<B: Board, S: Sleeper>(boards: &Boards<'_, B, S>, what: u32) {
    let sleeper = boards.other;
    // The move must be visible before the look at `waiting`: see `Side::rest`.
    S::barrier();
    if sleeper.waiting().load(Ordering::Relaxed) & what != 0 {
        sleeper.waiting().store(0, Ordering::Relaxed);
        let rung = sleeper.bell().load(Ordering::Relaxed).wrapping_add(1);
        // Only this side ever rings this bell.
        sleeper.bell().store(rung, Ordering::Release);
        // Who slept because both seemed to share a core is to know if they do not any more.
        boards.own.note_core();
        sleeper.wake();
    }
}
