//! A link through memory that two processes of one host share.
//!
//! How the two sides talk is in `ring`, the memory itself in `mapping`, and how both come to have it in `file`.
//!
//! Rings do not tell whether the other side is alive: that is what the pair's lifeline is for.

mod file;
mod mapping;
#[cfg(test)]
mod model;
mod ring;

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

pub(crate) use self::file::{SharedFile, ring_bytes};
use self::mapping::{Bed, Direction, Mapping};
use self::ring::{Boards, Side, Sleeper};
use super::{Interest, Link, Transport, Watched};
use crate::error::Cause;

/// One side of a pair.
pub(crate) struct SharedMemoryLink {
    mapping: Mapping,
    /// The ring that this side writes, and its place among the sleepers. The other side has the other.
    number: usize,
    side: Side,
}

impl SharedMemoryLink {
    /// The side that created the memory.
    pub(crate) fn acceptor(memory: SharedFile) -> Self {
        Self { mapping: memory.into_mapping(), number: 0, side: Side::default() }
    }

    /// The side that opened it.
    pub(crate) fn dialer(memory: SharedFile) -> Self {
        Self { mapping: memory.into_mapping(), number: 1, side: Side::default() }
    }

    /// Has `work` done by this side on its boards.
    fn with<T>(&mut self, work: impl FnOnce(&mut Side, &Boards<'_, Direction<'_>, Bed>) -> T) -> T {
        let (own, other) = (self.number, 1 - self.number);
        let boards = Boards {
            out: &self.mapping.direction(own),
            into: &self.mapping.direction(other),
            own: self.mapping.bed(own),
            other: self.mapping.bed(other),
        };
        work(&mut self.side, &boards)
    }
}

impl Link for SharedMemoryLink {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        self.with(|side, boards| side.send(boards, parts))
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        self.with(|side, boards| side.receive(boards, parts))
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        self.with(|side, boards| Ok(side.reader.available(boards.into)? > 0))
    }

    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause> {
        self.with(|side, boards| side.rest(boards, interest, at_most))
    }

    fn watch<'a>(&'a self, _interest: Interest, _sockets: &mut Watched<'a>) {}

    fn shares_core(&self) -> bool {
        let (own, other) = (self.mapping.bed(self.number), self.mapping.bed(1 - self.number));
        own.note_core();
        own.is_on_core_of(other)
    }

    fn transport(&self) -> Transport {
        Transport::SharedMemory
    }
}

#[cfg(test)]
mod tests;
