//! How long to spin, when to sleep, and when to give up.

use std::time::{Duration, Instant};

/// A wait is this many polls long before the clock is looked at again.
const POLLS_PER_LOOK: u32 = 16;
/// After this many long waits in a row, waits hardly spin at all.
const LONG_WAITS_MAX: u32 = 5;

/// The habits of a rank that waits.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) deadline: Duration,
    spin: Duration,
    /// Waits in a row, up to [`LONG_WAITS_MAX`], that took longer than `spin`.
    long_waits: u32,
    waited: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            spin: Duration::from_micros(50),
            long_waits: 0,
            waited: Duration::ZERO,
        }
    }
}

impl Patience {
    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
        self.long_waits = 0;
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

/// What to do while there is nothing to do.
pub(crate) enum Advice {
    /// Look again at once.
    Poll,
    /// Sleep for this long at most.
    Sleep(Duration),
    /// Nothing has moved for this long: the other side is lost.
    GiveUp(Duration),
}

/// A stretch in which nothing moves.
pub(crate) struct Wait {
    started: Instant,
    polls: u32,
    spinning: bool,
}

impl Wait {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), polls: 0, spinning: true }
    }

    /// Called each time that nothing has moved.
    pub(crate) fn advise(&mut self, patience: &Patience) -> Advice {
        if self.spinning {
            self.polls += 1;
            if !self.polls.is_multiple_of(POLLS_PER_LOOK) {
                std::hint::spin_loop();
                return Advice::Poll;
            }
        }
        let elapsed = self.started.elapsed();
        if self.spinning && elapsed < patience.spin / (1 << patience.long_waits) {
            return Advice::Poll;
        }
        self.spinning = false;
        match patience.deadline.checked_sub(elapsed) {
            Some(left) if !left.is_zero() => Advice::Sleep(left),
            _ => Advice::GiveUp(elapsed),
        }
    }

    /// Called when something has moved.
    pub(crate) fn end(self, patience: &mut Patience) {
        let elapsed = self.started.elapsed();
        patience.waited += elapsed;
        let long = elapsed > patience.spin;
        patience.long_waits = if long { (patience.long_waits + 1).min(LONG_WAITS_MAX) } else { 0 };
    }
}
