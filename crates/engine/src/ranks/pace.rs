//! How many tokens of prompts a step may take so that it does not last too long: no clock, only the times it is told.

use std::time::Duration;

/// How much the latest step without prompts counts against those before it.
const WEIGHT: f64 = 0.3;
/// How much less a step with prompts counts with each further one.
const KEEP: f64 = 0.8;
/// Tokens of prompts of a step as long as nothing is known.
const FIRST: usize = 64;
/// Steps with fewer tokens of prompts say little of larger ones.
const TELLING: usize = 16;
/// How much longer than it should a step may last by what the latest one says.
const SLACK: f64 = 1.1;
/// Numbers of tokens that kernels take at a time; the larger one counts where a few of them fit.
const GROUPS: [usize; 2] = [32, 8];

/// Learns what steps cost.
pub(crate) struct Pace {
    /// Longest that a step is to last.
    longest: Option<f64>,
    /// Seconds that a step takes without prompts.
    base: Option<f64>,
    /// Tokens of prompts of the latest steps, and the seconds that they took beyond the base. Steps count by their tokens: of
    /// those that take only few one learns as well, else a delay that made them small would keep them small for ever.
    tokens: f64,
    seconds: f64,
    /// Most tokens of prompts that the next step may take: a measurement says little of steps that are much larger.
    trusted: usize,
    /// Tokens of prompts that fit if each costs as much as in the latest step, its share of the base included. However wrong the
    /// base may be, more of them cost no more each.
    fitting: usize,
}

impl Pace {
    /// No token is to come later than `latency` after the one before it, nor the first one of a short request, even if it
    /// comes in the middle of a step: so a step is to last half as long. Without, steps may last for as long as they do.
    pub(crate) fn new(latency: Option<Duration>) -> Self {
        let longest = latency.map(|latency| latency.as_secs_f64() / 2.0);
        Self { longest, base: None, tokens: 0.0, seconds: 0.0, trusted: FIRST, fitting: FIRST }
    }

    /// A step with so many tokens of prompts took so long.
    pub(crate) fn learn(&mut self, prompt_tokens: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prompt_tokens == 0 {
            self.base = Some(self.base.map_or(took, |base| base + WEIGHT * (took - base)));
            return;
        }
        // Without its prompts the step had been no longer, whatever steps without prompts took a while ago.
        self.base = self.base.map(|base| base.min(took));
        self.tokens = KEEP * self.tokens + prompt_tokens as f64;
        self.seconds = KEEP * self.seconds + took - self.base.unwrap_or(0.0);
        if let Some(longest) = self.longest {
            self.fitting = (SLACK * longest * prompt_tokens as f64 / took.max(1e-9)) as usize;
        }
        if prompt_tokens >= TELLING {
            self.trusted = self.trusted.min(4 * prompt_tokens).max(2 * prompt_tokens);
        }
    }

    /// How many tokens of prompts, of `most`, the next step may take.
    pub(crate) fn room(&self, most: usize) -> usize {
        let Some(longest) = self.longest else { return most };
        let most = most.min(self.trusted);
        if self.tokens == 0.0 {
            return most;
        }
        let most_fitting = self.fitting.max(GROUPS[1]).min(most);
        let left = (longest - self.base.unwrap_or(0.0)).max(0.0);
        // A conversion from a float stops at the ends of the integer's range.
        let tokens = (left * self.tokens / self.seconds.max(1e-9)) as usize;
        let [large, small] = GROUPS;
        let whole = if tokens < 2 * large { (tokens + small / 2) / small * small } else { tokens / large * large };
        // Where answers alone take that long, prompts still have to go on. Fewer would waste most of a pass over the weights.
        whole.max(small).min(most_fitting)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn without_a_latency_steps_are_as_large_as_may_be() {
        let mut pace = Pace::new(None);
        assert_eq!(pace.room(256), 256);
        pace.learn(256, 9000 * MILLISECOND);
        assert_eq!(pace.room(256), 256);
    }

    #[test]
    fn steps_fit_the_latency() {
        let mut pace = Pace::new(Some(200 * MILLISECOND));
        assert_eq!((pace.room(256), pace.room(16)), (64, 16));
        pace.learn(64, 64 * MILLISECOND);
        assert_eq!(pace.room(256), 96);
        pace.learn(0, 50 * MILLISECOND);
        assert_eq!(pace.room(256), 48);
        // However slow the machine is, prompts go on.
        pace.learn(0, 900 * MILLISECOND);
        assert_eq!(pace.room(256), 8);
        assert_eq!(pace.room(4), 4);
    }

    /// What steps of `tokens` tokens come to on a machine where they take `cost(tokens)`.
    fn settled(pace: &mut Pace, cost: impl Fn(f64) -> f64) -> usize {
        for _ in 0..30 {
            let tokens = pace.room(4096);
            pace.learn(tokens, Duration::from_secs_f64(cost(tokens as f64)));
        }
        pace.room(4096)
    }

    #[test]
    fn a_delay_is_forgotten() {
        let mut pace = Pace::new(Some(200 * MILLISECOND));
        pace.learn(0, 10 * MILLISECOND);
        let machine = |tokens| 0.010 + 0.001 * tokens;
        let usual = settled(&mut pace, machine);
        assert!((64..=90).contains(&usual), "{usual}");
        for prompt_tokens in [0, 8, 64] {
            (0..3).for_each(|_| pace.learn(prompt_tokens, 2000 * MILLISECOND));
            assert_eq!(pace.room(4096), 8, "after {prompt_tokens}");
            let later = settled(&mut pace, machine);
            assert!((64..=96).contains(&later), "{later} after {prompt_tokens}");
        }
        // A busy machine, too, is filled, and no more than that.
        let busy = settled(&mut pace, |tokens| 0.040 + 0.004 * tokens);
        assert!((8..=24).contains(&busy), "{busy}");
    }

    proptest! {
        /// On a machine whose steps cost what they cost, give or take a fifth, no step lasts longer than the goal by
        /// more than that, once it is known and the goal can be met at all.
        #[test]
        fn steps_last_no_longer_than_they_may(
            base in 0.0_f64..0.05,
            each in 0.0001_f64..0.005,
            noise in prop::collection::vec(0.8_f64..1.2, 40),
        ) {
            let mut pace = Pace::new(Some(200 * MILLISECOND));
            for (turn, noise) in noise.into_iter().enumerate() {
                let tokens = if turn % 3 == 0 { 0 } else { pace.room(4096) };
                let took = (base + each * tokens as f64) * noise;
                pace.learn(tokens, Duration::from_secs_f64(took));
                if turn > 2 && tokens > GROUPS[1] {
                    prop_assert!(took < 0.1 * 1.2 * 1.6, "{tokens} tokens took {took} s");
                }
            }
        }
    }
}
