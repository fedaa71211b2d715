//! How many tokens of prompts a step may take so that it does not last too long: no clock, only the times it is told.

use std::time::Duration;

/// How much the latest measurement counts against those before it.
const WEIGHT: f64 = 0.3;
/// Tokens of prompts of a step as long as nothing is known.
const FIRST: usize = 64;
/// Steps with fewer tokens of prompts say little of what one costs.
const TELLING: usize = 16;
/// Fewer tokens of prompts would waste most of a pass over the weights.
const FEWEST: usize = 8;
/// Numbers of tokens that kernels take at a time, the larger one where it fits.
const GROUPS: [usize; 2] = [32, 8];

/// Learns what steps cost.
pub(crate) struct Pace {
    /// Longest that a step is to last.
    longest: Option<f64>,
    /// Seconds that a step takes without prompts, and for each of their tokens more.
    base: Option<f64>,
    each: Option<f64>,
    /// Most tokens of prompts that the next step may take: a measurement says little of steps that are much larger.
    trusted: usize,
}

impl Pace {
    /// No token is to come later than `latency` after the one before it, nor the first one of a short request, even if it
    /// comes in the middle of a step: so a step is to last half as long. Without, steps may last for as long as they do.
    pub(crate) fn new(latency: Option<Duration>) -> Self {
        Self { longest: latency.map(|latency| latency.as_secs_f64() / 2.0), base: None, each: None, trusted: FIRST }
    }

    /// A step with so many tokens of prompts took so long.
    pub(crate) fn learn(&mut self, prompt_tokens: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prompt_tokens == 0 {
            mix(&mut self.base, took);
        } else if prompt_tokens >= TELLING {
            mix(&mut self.each, (took - self.base.unwrap_or(0.0)).max(0.0) / prompt_tokens as f64);
            self.trusted = self.trusted.min(4 * prompt_tokens).max(2 * prompt_tokens);
        }
    }

    /// How many tokens of prompts, of `most`, the next step may take.
    pub(crate) fn room(&self, most: usize) -> usize {
        let Some(longest) = self.longest else { return most };
        let most = most.min(self.trusted);
        let Some(each) = self.each else { return most };
        // Where answers alone take that long, prompts still have to go on.
        let left = (longest - self.base.unwrap_or(0.0)).max(0.0);
        // A conversion from a float stops at the ends of the integer's range.
        let tokens = (left / each.max(1e-9)) as usize;
        let whole = GROUPS.into_iter().map(|group| tokens / group * group).find(|&tokens| tokens > 0);
        whole.unwrap_or(0).max(FEWEST).min(most)
    }
}

fn mix(known: &mut Option<f64>, latest: f64) {
    *known = Some(known.map_or(latest, |known| known + WEIGHT * (latest - known)));
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
        assert_eq!(pace.room(256), 32);
        // However slow the machine is, prompts go on.
        pace.learn(0, 900 * MILLISECOND);
        assert_eq!(pace.room(256), FEWEST);
        assert_eq!(pace.room(4), 4);
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
                if turn > 2 && tokens > FEWEST {
                    prop_assert!(took < 0.1 * 1.2 * 1.6, "{tokens} tokens took {took} s");
                }
            }
        }
    }
}
