//! What a step costs by the number of its tokens: no clock, only the times that it is told.

/// How much less a measurement counts with each further one.
const FORGET: f64 = 0.97;
/// What a further token costs as long as nothing is known, as a share of a step of one token.
const UNKNOWN: f64 = 0.3;

/// A straight line through the times of steps without prompts, by least squares.
#[derive(Default)]
pub(crate) struct StepCost {
    weight: f64,
    tokens: f64,
    seconds: f64,
    tokens_squared: f64,
    products: f64,
}

impl StepCost {
    /// A step over so many tokens took so long.
    pub(crate) fn learn(&mut self, tokens: usize, seconds: f64) {
        let tokens = tokens as f64;
        let add = |sum: &mut f64, value: f64| *sum = FORGET * *sum + value;
        add(&mut self.weight, 1.0);
        add(&mut self.tokens, tokens);
        add(&mut self.seconds, seconds);
        add(&mut self.tokens_squared, tokens * tokens);
        add(&mut self.products, tokens * seconds);
    }

    /// How many tokens would have been generated in the time that a drafted token adds to a step of `sequences` sequences.
    pub(crate) fn price(&self, sequences: usize) -> f64 {
        let sequences = sequences.max(1) as f64;
        let share = match self.line(sequences) {
            Some((each, step)) => (each / step).clamp(0.02, 1.0),
            None => UNKNOWN / (1.0 + UNKNOWN * (sequences - 1.0)),
        };
        share * sequences
    }

    /// Seconds in which a token is generated in steps of one token of each of `sequences` sequences, if that is known.
    pub(crate) fn seconds_per_token(&self, sequences: usize) -> Option<f64> {
        let sequences = sequences.max(1) as f64;
        let alike = || Some(self.seconds / self.weight).filter(|&seconds| seconds > 0.0);
        Some(self.line(sequences).map(|(_, step)| step).or_else(alike)? / sequences)
    }

    /// Seconds that each token adds to a step, and those of a step of so many, where steps of several kinds were seen.
    fn line(&self, tokens: f64) -> Option<(f64, f64)> {
        let spread = self.weight * self.tokens_squared - self.tokens * self.tokens;
        let each = (self.weight * self.products - self.tokens * self.seconds) / spread;
        let step = (self.seconds + each * (tokens * self.weight - self.tokens)) / self.weight;
        let known = spread > 1e-6 * self.tokens_squared && each.is_finite() && step > 0.0;
        known.then_some((each, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_is_that_of_the_machine() {
        let mut cost = StepCost::default();
        assert!((cost.price(1) - 0.3).abs() < 1e-9);
        for turn in 0..60 {
            let tokens = 1 + turn % 5;
            cost.learn(tokens, 0.010 + 0.002 * tokens as f64);
        }
        assert!((cost.price(1) - 2.0 / 12.0).abs() < 1e-6, "{}", cost.price(1));
        assert!((cost.price(8) - 8.0 * 2.0 / 26.0).abs() < 1e-6, "{}", cost.price(8));
        // Only steps of one kind say nothing of others.
        let mut alike = StepCost::default();
        (0..50).for_each(|_| alike.learn(1, 0.01));
        assert!((alike.price(1) - 0.3).abs() < 1e-9);
    }
}
