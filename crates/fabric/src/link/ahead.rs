//! A link from which is taken in early what comes while this side waits for something else.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use super::{Cable, Interest, Link, LinkCounters, Transport, Watched};
use crate::error::Cause;

/// The most bytes that are taken in at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A link with more room on the way to this side, which is filled by [`Link::read_ahead`].
pub(crate) struct ReadAhead {
    link: Box<dyn Link>,
    /// What has come and was not received yet.
    early: VecDeque<u8>,
    /// The most that may lie there.
    most: usize,
    piece: Vec<u8>,
    /// Whether the link has failed, which is an error for who receives what is no longer to come.
    failed: bool,
}

impl ReadAhead {
    /// Takes in up to `most` bytes of `link` early.
    pub(crate) fn new(link: Box<dyn Link>, most: usize) -> Self {
        Self { link, early: VecDeque::new(), most, piece: vec![0; PIECE_BYTES], failed: false }
    }

    /// Fills the front of `part` with what has come early.
    fn take(&mut self, part: &mut [u8]) -> usize {
        let (front, back) = self.early.as_slices();
        let first = front.len().min(part.len());
        let second = back.len().min(part.len() - first);
        part[..first].copy_from_slice(&front[..first]);
        part[first..first + second].copy_from_slice(&back[..second]);
        self.early.drain(..first + second);
        first + second
    }
}

impl Link for ReadAhead {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        self.link.try_send(parts)
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        if self.early.is_empty() {
            return self.link.try_recv(parts);
        }
        Ok(parts.iter_mut().map(|part| self.take(part)).sum())
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        if self.early.is_empty() { self.link.is_readable() } else { Ok(true) }
    }

    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause> {
        self.link.rest(interest, at_most)
    }

    fn watch<'a>(&'a self, interest: Interest, sockets: &mut Watched<'a>) {
        self.link.watch(interest, sockets);
    }

    fn can_read_ahead(&self) -> bool {
        !self.failed && self.early.len() < self.most
    }

    fn read_ahead(&mut self) -> bool {
        let before = self.early.len();
        while self.can_read_ahead() {
            let room = (self.most - self.early.len()).min(PIECE_BYTES);
            match self.link.try_recv(&mut [IoSliceMut::new(&mut self.piece[..room])]) {
                Ok(0) => break,
                Ok(taken) => self.early.extend(&self.piece[..taken]),
                Err(_) => self.failed = true,
            }
        }
        self.early.len() > before
    }

    fn shares_core(&self) -> bool {
        self.link.shares_core()
    }

    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn cables(&self) -> Vec<Cable> {
        self.link.cables()
    }

    fn is_encrypted(&self) -> bool {
        self.link.is_encrypted()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}
