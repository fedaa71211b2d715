//! How much a draft model may cost all sequences together before it has to pay: no clock, only what was gained and lost.

/// Tokens that may be lost for each one that is generated.
const SHARE: f64 = 0.02;
/// Tokens that may be lost before anything is known, and after drafts have paid for long.
const FIRST: f64 = 6.0;
const MOST: f64 = 32.0;
/// Once it is used up, it is tried again when so many tokens may be lost.
const AGAIN: f64 = 2.0;
/// What goes beyond it, as where something else has kept the machine busy, is forgiven.
const LEAST: f64 = -256.0;

/// Tokens that were not generated in the time that drafts took, set against those that drafts have brought and those that may be
/// lost to find out.
pub(crate) struct Allowance {
    tokens: f64,
    is_open: bool,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { tokens: FIRST, is_open: true }
    }
}

impl Allowance {
    /// Whether it may be tried.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// So many tokens are generated, with drafts or without.
    pub(crate) fn pass(&mut self, generated: usize) {
        self.tokens = (self.tokens + SHARE * generated as f64).min(MOST);
        self.is_open |= self.tokens >= AGAIN;
    }

    /// Drafts have gained so many tokens, or lost them where it is less than nothing.
    pub(crate) fn learn(&mut self, gain: f64) {
        self.tokens = (self.tokens + gain).clamp(LEAST, MOST);
        self.is_open &= self.tokens > 0.0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_does_not_pay_ends_and_is_tried_again() {
        let mut allowance = Allowance::default();
        let mut tries = 0;
        for _ in 0..1000 {
            allowance.pass(1);
            if allowance.is_open() {
                tries += 1;
                allowance.learn(-0.5);
            }
        }
        assert!((40..60).contains(&tries), "{tries}");
        // Where it pays after all, it goes on.
        let mut drafts = 0;
        for _ in 0..1000 {
            allowance.pass(1);
            if allowance.is_open() {
                drafts += 1;
                allowance.learn(if drafts % 3 == 0 { -0.5 } else { 0.5 });
            }
        }
        assert!(drafts > 850, "{drafts}");
    }

    proptest! {
        /// Whatever drafts bring: what is lost is a small part of what is generated.
        #[test]
        fn losses_are_bounded(gains in prop::collection::vec(-3.0_f64..3.0, 1..60), generated in 1_usize..9) {
            let mut allowance = Allowance::default();
            let (mut balance, mut gains, steps) = (0.0, gains.into_iter(), 5000);
            for _ in 0..steps {
                allowance.pass(generated);
                if allowance.is_open() {
                    let gain = gains.next().unwrap_or(-1.0);
                    balance += gain;
                    allowance.learn(gain);
                }
            }
            let most = MOST + 3.0 + SHARE * (steps * generated) as f64;
            prop_assert!(balance >= -most, "{balance}");
        }
    }
}
