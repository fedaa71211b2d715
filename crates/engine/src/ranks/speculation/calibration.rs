//! How often a draft model is right when it is so sure: no clock, only what came of its drafts.

/// Probabilities are told apart by so many equal parts.
const PARTS: usize = 8;
/// How many drafted tokens the first guess counts for, and how much less a token counts with each further one.
const GUESS: f64 = 2.0;
const FORGET: f64 = 0.98;

/// What a draft model's probabilities mean for one sequence. Where the likeliest token is always taken, they tell too little of
/// how often both models choose the same.
#[derive(Debug, Default)]
pub(crate) struct Calibration {
    parts: [Part; PARTS],
}

#[derive(Debug, Default, Clone, Copy)]
struct Part {
    drafted: f64,
    right: f64,
}

impl Calibration {
    /// How likely a drafted token is right that the draft model gives this probability.
    pub(crate) fn expected(&self, probability: f64) -> f64 {
        let Part { drafted, right } = self.parts[part(probability)];
        // As long as nothing is known it is worth trying.
        let guess = (1.0 + probability) / 2.0;
        (right + GUESS * guess) / (drafted + GUESS)
    }

    /// A drafted token with this probability was right, or was not.
    pub(crate) fn learn(&mut self, probability: f64, right: bool) {
        let part = &mut self.parts[part(probability)];
        part.drafted = FORGET * part.drafted + 1.0;
        part.right = FORGET * part.right + f64::from(u8::from(right));
    }
}

fn part(probability: f64) -> usize {
    // What is not a number becomes 0.
    ((probability * PARTS as f64) as usize).min(PARTS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_right_before_is_expected_again() {
        let mut calibration = Calibration::default();
        assert!((calibration.expected(0.3) - 0.65).abs() < 1e-9);
        for turn in 0..400 {
            calibration.learn(0.3, turn % 10 > 0);
            calibration.learn(0.99, turn % 2 > 0);
        }
        assert!((calibration.expected(0.3) - 0.9).abs() < 0.05, "{calibration:?}");
        assert!((calibration.expected(1.0) - 0.5).abs() < 0.05, "{calibration:?}");
        assert!(calibration.expected(0.6) > 0.7);
    }

    proptest! {
        #[test]
        fn what_is_expected_is_a_probability(told in prop::collection::vec((any::<f64>(), any::<bool>()), 0..200), of in 0.0..=1.0) {
            let mut calibration = Calibration::default();
            told.into_iter().for_each(|(probability, right)| calibration.learn(probability, right));
            prop_assert!((0.0..=1.0).contains(&calibration.expected(of)));
        }
    }
}
