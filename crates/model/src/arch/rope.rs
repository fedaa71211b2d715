//! The frequencies of rotary position encoding (Su et al., 2021) and the ways to stretch them to longer contexts.

use std::f32::consts::TAU;

use kernels::RopeLayout;

/// How positions are encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Which elements of a head form a pair.
    pub layout: RopeLayout,
    /// Elements of a head that are rotated; the rest stay.
    pub dimensions: usize,
    /// The base of the geometric series of frequencies.
    pub base: f32,
    /// How the series is stretched.
    pub scaling: RopeScaling,
}

/// A way to stretch the frequencies to contexts longer than the model was trained on at first.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// All divided by one factor (position interpolation: Chen et al., 2023).
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Each divided by its own factor, as Llama 3 does.
    Factors(Vec<f32>),
    /// Low frequencies divided, high ones kept, with a ramp between them (YaRN: Peng et al., 2023).
    Yarn {
        /// The divisor.
        factor: f32,
        /// The context of the first training.
        original_context: usize,
        /// An extra factor on the magnitude.
        attention_factor: f32,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f32,
        /// Rotations below which it is divided.
        beta_slow: f32,
    },
}

impl Rope {
    /// The frequencies in radians per position, one per pair, and the factor on the rotated values.
    pub fn frequencies(&self) -> (Vec<f32>, f32) {
        let pairs = self.dimensions / 2;
        let plain = (0..pairs).map(|pair| self.base.powf(-(2.0 * pair as f32) / self.dimensions as f32));
        match &self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|frequency| frequency / factor).collect(), 1.0),
            RopeScaling::Factors(factors) => {
                // A file with too few factors leaves the remaining frequencies as they are.
                let factors = factors.iter().copied().chain(std::iter::repeat(1.0));
                (plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect(), 1.0)
            }
            RopeScaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow } => {
                let low = self.yarn_pair(*original_context, *beta_fast).floor().max(0.0);
                let high = self.yarn_pair(*original_context, *beta_slow).ceil().min(self.dimensions as f32 - 1.0);
                let mixed = plain.enumerate().map(|(pair, frequency)| {
                    let divided = ((pair as f32 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    frequency / factor * divided + frequency * (1.0 - divided)
                });
                (mixed.collect(), attention_factor * (1.0 + 0.1 * factor.ln()))
            }
        }
    }

    /// The (fractional) pair that turns `rotations` times over the original context.
    fn yarn_pair(&self, original_context: usize, rotations: f32) -> f32 {
        let pair = (original_context as f32 / (rotations * TAU)).ln() / (2.0 * self.base.ln());
        self.dimensions as f32 * pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { layout: RopeLayout::Halves, dimensions: 64, base: 10_000.0, scaling }
    }

    #[test]
    fn plain_frequencies_fall_geometrically_from_one() {
        let (frequencies, magnitude) = rope(RopeScaling::None).frequencies();
        assert_eq!((frequencies.len(), frequencies[0], magnitude), (32, 1.0, 1.0));
        assert!((frequencies[16] - 0.01).abs() < 1e-7);
    }

    #[test]
    fn yarn_keeps_the_fast_and_divides_the_slow() {
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 4096,
            attention_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        let (plain, _) = rope(RopeScaling::None).frequencies();
        let (stretched, magnitude) = rope(yarn).frequencies();
        assert_eq!(stretched[0], plain[0]);
        assert!((stretched[31] - plain[31] / 4.0).abs() < 1e-9);
        assert!((magnitude - 1.138_629_4).abs() < 1e-6);
        assert!(stretched.windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn factors_divide_one_by_one_and_missing_ones_leave_the_rest() {
        let (plain, _) = rope(RopeScaling::None).frequencies();
        let (scaled, _) = rope(RopeScaling::Factors(vec![2.0, 8.0])).frequencies();
        assert_eq!((scaled[0], scaled[1], scaled[2]), (plain[0] / 2.0, plain[1] / 8.0, plain[2]));
    }
}
