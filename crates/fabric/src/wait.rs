//! How long to spin, when to let go of the core, when to sleep, and when to give up.

use std::time::{Duration, Instant};

/// A rank that spins polls this often before it looks at the clock again.
const POLLS_PER_LOOK: u32 = 16;
/// After this many long waits in a row, waits hardly spin at all.
const LONG_WAITS_MAX: u32 = 5;
/// How long a rank spins that has to share its core.
const CROWDED_SPIN: Duration = Duration::from_micros(1);

/// The habits of a rank that waits.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) deadline: Duration,
    /// How long a wait goes on before it sleeps.
    spin: Duration,
    /// Whether the ranks of this host have to share cores.
    crowded: bool,
    /// Waits in a row, up to [`LONG_WAITS_MAX`], that took longer than `spin`.
    long_waits: u32,
    waited: Duration,
}

impl Patience {
    pub(crate) fn new(crowded: bool) -> Self {
        Self {
            deadline: Duration::from_secs(30),
            spin: Duration::from_micros(50),
            crowded,
            long_waits: 0,
            waited: Duration::ZERO,
        }
    }

    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
        self.long_waits = 0;
    }

    pub(crate) fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// What to do after having polled in vain for `elapsed`.
    ///
    /// A rank with a core of its own spins, the less the longer recent waits were, and then sleeps. A rank that shares
    /// its core may keep the very rank from running that it waits for: it offers the core to others after each poll,
    /// which is cheaper than to sleep and be woken up, before it sleeps. Others would not do well to yield, as a rank
    /// that yields to some unrelated program gets its core back late, but a rank that is woken up gets it at once.
    ///
    /// Where another program keeps a core busy, the system often puts two ranks on one of the others. So a rank that waits
    /// for one last seen on its own core (`shares_core`) sleeps at once: that one gets nothing done otherwise.
    fn stage(&self, elapsed: Duration, shares_core: bool) -> Stage {
        if self.crowded {
            return match elapsed {
                _ if elapsed < CROWDED_SPIN.min(self.spin) => Stage::Spin,
                _ if elapsed < self.spin => Stage::Yield,
                _ => Stage::Sleep,
            };
        }
        let spins = !shares_core && elapsed < self.spin / (1 << self.long_waits);
        if spins { Stage::Spin } else { Stage::Sleep }
    }
}

/// How much a waiting rank lets go of its core.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Spin,
    Yield,
    Sleep,
}

/// What to do while there is nothing to do.
pub(crate) enum Advice {
    /// Look again at once.
    Poll,
    /// Sleep for this long at most.
    Sleep(Duration),
    /// Nothing has moved for this long, which is too long.
    GiveUp(Duration),
}

/// A stretch in which nothing moves. The clock is not read before it has gone on for some polls, as most are shorter
/// than it takes to read it.
#[derive(Default)]
pub(crate) struct Wait {
    started: Option<Instant>,
    polls: u32,
    stage: Stage,
}

impl Wait {
    #[inline]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Called each time that nothing has moved. The wait must not go on for longer than `deadline`. `shares_core` tells
    /// whether who is waited for was last seen on this rank's core.
    #[inline]
    pub(crate) fn advise(
        &mut self,
        patience: &Patience,
        deadline: Duration,
        shares_core: impl FnOnce() -> bool,
    ) -> Advice {
        self.polls = self.polls.wrapping_add(1);
        if self.stage == Stage::Spin && !self.polls.is_multiple_of(POLLS_PER_LOOK) && !patience.crowded {
            std::hint::spin_loop();
            return Advice::Poll;
        }
        self.look(patience, deadline, shares_core())
    }

    #[cold]
    fn look(&mut self, patience: &Patience, deadline: Duration, shares_core: bool) -> Advice {
        let elapsed = self.started.get_or_insert_with(Instant::now).elapsed();
        self.stage = patience.stage(elapsed, shares_core);
        match (self.stage, deadline.checked_sub(elapsed)) {
            (_, None | Some(Duration::ZERO)) => Advice::GiveUp(elapsed),
            (Stage::Spin, _) => Advice::Poll,
            (Stage::Yield, _) => {
                std::thread::yield_now();
                Advice::Poll
            }
            (Stage::Sleep, Some(left)) => Advice::Sleep(left),
        }
    }

    /// Called when something has moved. The next stretch begins.
    #[inline]
    pub(crate) fn end(&mut self, patience: &mut Patience) {
        if let Some(started) = self.started.take() {
            self.note(started.elapsed(), patience);
        } else if self.polls > 0 {
            patience.long_waits = 0;
        }
        (self.polls, self.stage) = (0, Stage::Spin);
    }

    #[cold]
    fn note(&mut self, elapsed: Duration, patience: &mut Patience) {
        patience.waited += elapsed;
        let long = elapsed > patience.spin;
        patience.long_waits = if long { (patience.long_waits + 1).min(LONG_WAITS_MAX) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a wait polls before it sleeps.
    fn polls_before_sleep(shares_core: bool) -> usize {
        let mut patience = Patience::new(false);
        patience.set_spin(Duration::from_secs(3600));
        let mut wait = Wait::new();
        (0..1000).take_while(|_| matches!(wait.advise(&patience, Duration::MAX, || shares_core), Advice::Poll)).count()
    }

    #[test]
    fn nobody_spins_on_the_core_of_whom_it_waits_for() {
        assert_eq!(polls_before_sleep(true), POLLS_PER_LOOK as usize - 1);
        assert_eq!(polls_before_sleep(false), 1000);
    }
}
