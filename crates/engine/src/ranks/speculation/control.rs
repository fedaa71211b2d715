//! How long a draft is worth making: no clock, only what came of drafts before.

/// Length of the first draft.
const FIRST: usize = 3;
/// Steps without a draft after drafts that did not pay, at first and at most.
const PAUSE: usize = 8;
const PAUSE_MAX: usize = 256;
/// What drafts may cost before they have brought anything, in tokens that would have been generated instead; and how much
/// of what they have brought they may lose again.
const CREDIT: f64 = 1.5;
const CREDIT_MAX: f64 = 4.0;

/// Decides about the drafts of one sequence.
pub(crate) struct Control {
    most: usize,
    length: usize,
    /// Steps until drafts are tried again, and how many it will be the next time.
    pause: usize,
    next_pause: usize,
    /// Tokens gained less tokens lost.
    credit: f64,
}

impl Control {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, length: FIRST.min(most), pause: 0, next_pause: PAUSE, credit: CREDIT }
    }

    /// How many tokens are worth drafting for the next step.
    pub(crate) fn length(&self) -> usize {
        if self.pause > 0 { 0 } else { self.length }
    }

    /// A step passes.
    pub(crate) fn pass(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }

    /// Of `drafted` tokens so many were right. All of it has cost as much as `cost` tokens, also where nothing was drafted.
    pub(crate) fn learn(&mut self, drafted: usize, accepted: usize, cost: f64) {
        let gain = accepted as f64 - cost;
        self.credit = (self.credit + gain).min(CREDIT_MAX);
        // A draft that was made shorter for other reasons says only that it was wrong, if it was.
        if accepted < drafted || drafted >= self.length {
            let length = if accepted == drafted { 2 * drafted } else { accepted + 1 };
            self.length = length.clamp(2, self.most.max(2)).min(self.most);
        }
        if gain > 0.0 {
            self.next_pause = PAUSE;
        }
        if self.credit < 0.0 {
            (self.credit, self.pause) = (0.0, self.next_pause);
            self.next_pause = (2 * self.next_pause).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRICE: f64 = 0.25;

    #[test]
    fn drafts_grow_while_they_are_right_and_end_when_they_are_not() {
        let mut control = Control::new(15);
        let mut lengths = Vec::new();
        for _ in 0..4 {
            lengths.push(control.length());
            control.learn(control.length(), control.length(), PRICE * control.length() as f64);
        }
        assert_eq!(lengths, [3, 6, 12, 15]);
        let mut tries = 0;
        while control.length() > 0 {
            control.learn(control.length(), 0, PRICE * control.length() as f64);
            tries += 1;
        }
        assert!(tries <= 5, "{tries}");
        for _ in 0..PAUSE {
            assert_eq!(control.length(), 0);
            control.pass();
        }
        assert!(control.length() > 0);
    }

    #[test]
    fn none_are_made_where_none_may_be() {
        let mut control = Control::new(0);
        assert_eq!(control.length(), 0);
        control.learn(0, 0, 0.0);
        assert_eq!(control.length(), 0);
    }

    #[test]
    fn what_brings_no_draft_costs_as_well() {
        let mut control = Control::new(15);
        let tries = std::iter::from_fn(|| (control.length() > 0).then(|| control.learn(0, 0, 0.4))).take(99).count();
        assert_eq!(tries, 4);
        (0..PAUSE).for_each(|_| control.pass());
        assert_eq!(control.length(), 3);
    }

    proptest! {
        /// However often drafts are wrong, a long text loses little by them.
        #[test]
        fn losses_are_bounded(rights in prop::collection::vec(0_usize..16, 0..40), price in 0.1_f64..0.6) {
            let mut control = Control::new(15);
            let (mut balance, mut rights) = (0.0, rights.into_iter());
            let steps = 20_000;
            for _ in 0..steps {
                let length = control.length();
                control.pass();
                if length > 0 {
                    let right = rights.next().unwrap_or(0).min(length);
                    balance += right as f64 - price * length as f64;
                    control.learn(length, right, price * length as f64);
                }
            }
            prop_assert!(balance > -0.02 * f64::from(steps), "{balance}");
        }
    }
}
