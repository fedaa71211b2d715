//! A rank whose lifeline says anything. For fuzzing and tests only.

use std::time::Duration;

use super::frame::{Codec, FRAME_BYTES, stamp};
use super::{Timing, Tracker};
use crate::error::Cause;

const SIZE: usize = 8;
const GENERATION: u32 = 7;

/// Lets the rank at the other end of a lifeline say anything: as it is, or, so that more of it is understood, with the
/// beginnings of frames put right. This rank goes on, whatever it hears.
pub fn fuzz(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if how & 1 == 1 {
        for (number, frame) in (0..).zip(bytes.chunks_exact_mut(FRAME_BYTES)) {
            stamp(frame, GENERATION, number);
        }
    }
    let mut codec = Codec::new(GENERATION, SIZE);
    let hops: Vec<usize> = (0..SIZE).map(|rank| rank % 4).collect();
    let mut tracker = Tracker::new(0, &hops, Timing::new(Duration::from_millis(400)), Duration::ZERO);
    let mut now = Duration::ZERO;
    for portion in bytes.chunks(usize::from(how) + 1) {
        codec.feed(portion);
        loop {
            match codec.next() {
                Ok(Some(statement)) => tracker.on_statement(1, statement, now),
                Ok(None) => break,
                Err(cause) => return tracker.on_end(1, cause, now),
            }
        }
        now += Duration::from_millis(u64::from(how));
        tracker.on_tick(None, now);
        for rank in 0..SIZE {
            tracker.take_outbox(rank).iter().for_each(|statement| codec.queue(statement));
        }
        let most = SIZE + 1;
        assert!(tracker.verdicts().len() <= most, "each rank is lost once, and there is one mismatch");
        assert_eq!(tracker.standings(now).len(), SIZE);
    }
    tracker.on_end(1, Cause::Closed, now);
}

#[cfg(test)]
mod tests {
    proptest::proptest! {
        #[test]
        fn whatever_is_said_nobody_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000)) {
            super::fuzz(&bytes);
        }
    }
}
