//! Messages of an older generation, which are skipped: what a rank had sent before the group was formed anew.

use std::io::IoSliceMut;

use crate::error::{Cause, View};
use crate::link::Link;
use crate::message::MAX_MESSAGE;

/// More messages of an older generation are no remains of it.
pub(super) const COUNT_MAX: u32 = 1 << 16;
/// The bytes that are skipped at a time.
const STEP_BYTES: usize = 4096;

/// What is being skipped.
#[derive(Default)]
pub(super) struct Stale {
    /// Bytes of the present one that are still to come.
    left: u64,
    /// What came along with its header and is yet to be looked at, from `at` on.
    early: Vec<u8>,
    at: usize,
}

/// Begins to skip the message that a header announces. False when there is too much to skip.
pub(super) fn begin(stale: &mut Option<Box<Stale>>, header: &View) -> bool {
    let stale = stale.get_or_insert_default();
    stale.left = header.length.unwrap_or(u64::MAX);
    header.kind.is_some() && stale.left <= MAX_MESSAGE as u64
}

/// Fills `parts` with what comes after the message that is being skipped.
#[cold]
pub(super) fn receive(
    link: &mut dyn Link,
    stale: &mut Option<Box<Stale>>,
    parts: &mut [IoSliceMut<'_>],
) -> Result<usize, Cause> {
    let Some(skipped) = stale else { return link.try_recv(parts) };
    if !skipped.skip(link)? {
        return Ok(0);
    }
    if skipped.at == skipped.early.len() {
        *stale = None;
        return link.try_recv(parts);
    }
    let mut taken = 0;
    for part in parts {
        let early = &skipped.early[skipped.at..];
        let count = early.len().min(part.len());
        part[..count].copy_from_slice(&early[..count]);
        skipped.at += count;
        taken += count;
    }
    Ok(taken)
}

impl Stale {
    /// Takes back what was received along with a stale header.
    pub(super) fn put_back(&mut self, early: &[u8]) {
        self.early.drain(..self.at);
        self.early.splice(0..0, early.iter().copied());
        self.at = 0;
    }

    /// True when nothing is left to skip.
    fn skip(&mut self, link: &mut dyn Link) -> Result<bool, Cause> {
        let had = self.left.min((self.early.len() - self.at) as u64);
        self.at += had as usize;
        self.left -= had;
        let mut nowhere = [0; STEP_BYTES];
        while self.left > 0 {
            let step = self.left.min(STEP_BYTES as u64) as usize;
            match link.try_recv(&mut [IoSliceMut::new(&mut nowhere[..step])])? {
                0 => return Ok(false),
                taken => self.left -= taken as u64,
            }
        }
        Ok(true)
    }
}
