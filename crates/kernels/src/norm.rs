//! Root-mean-square normalization.

use crate::Pool;
use crate::simd::math::{load_part, store_part};
use crate::simd::{LANES, Simd, Task, dispatch};

/// Values that a thread takes at a time: fewer are not worth waking it.
const PORTION: usize = 1 << 14;

/// Normalizes each row of `columns` values: `x = x / sqrt(mean(x²) + epsilon) * weight`. With `columns` the size of a head,
/// it normalizes queries and keys head by head.
///
/// # Panics
/// When `x` is no whole number of rows, or `weight` is not as long as a row.
pub fn rms_norm_in_place(pool: &Pool, x: &mut [f32], columns: usize, weight: &[f32], epsilon: f32) {
    let piece = piece_length(x.len(), columns, weight);
    pool.for_each_piece(x, piece, |_, x| dispatch(Normalize { x, weight, epsilon }));
}

/// Values in a piece of whole rows.
fn piece_length(values: usize, columns: usize, weight: &[f32]) -> usize {
    assert!(columns > 0 && values.is_multiple_of(columns), "{values} values are no rows of {columns}");
    assert_eq!(weight.len(), columns, "the norm needs one weight per column");
    PORTION.div_ceil(columns) * columns
}

/// Normalizes rows as long as `weight`.
struct Normalize<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Task for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (weights, weights_rest) = self.weight.as_chunks::<LANES>();
        for row in self.x.chunks_exact_mut(self.weight.len()) {
            let factor = factor_of_row(simd, row, self.epsilon);
            let (vectors, rest) = row.as_chunks_mut::<LANES>();
            let last = load_part(simd, rest);
            for (vector, weight) in vectors.iter_mut().zip(weights) {
                simd.store(simd.mul(simd.mul(simd.load(vector), factor), simd.load(weight)), vector);
            }
            store_part(simd, simd.mul(simd.mul(last, factor), load_part(simd, weights_rest)), rest);
        }
    }
}

/// What all values of a row are to be multiplied with, in all lanes.
#[inline(always)]
pub(crate) fn factor_of_row<S: Simd>(simd: S, row: &[f32], epsilon: f32) -> S::Floats {
    let (vectors, rest) = row.as_chunks::<LANES>();
    let mut squares = simd.splat(0.0);
    for vector in vectors {
        let x = simd.load(vector);
        squares = simd.fused(x, x, squares);
    }
    let last = load_part(simd, rest);
    squares = simd.fused(last, last, squares);
    simd.splat(1.0 / (simd.sum(squares) / row.len() as f32 + epsilon).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::run_portable;
    use proptest::prelude::*;

    #[test]
    fn rows_get_unit_mean_square() {
        let pool = Pool::new(1).unwrap();
        let mut out = [3.0, -3.0, 1.0, 7.0];
        rms_norm_in_place(&pool, &mut out, 2, &[1.0, 2.0], 0.0);
        assert_eq!(out, [1.0, -2.0, 0.2, 2.8]);
    }

    /// The definition, in double precision.
    fn reference(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
        x.iter().zip(weight).map(|(x, weight)| (f64::from(*x) * factor * f64::from(*weight)) as f32).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn agrees_with_the_reference_on_any_number_of_threads(
            columns in 1usize..70,
            rows in prop_oneof![1usize..5, 1000usize..1100],
            seed in 0u32..1000,
        ) {
            let number = |i: usize| ((i as f32 + seed as f32) * 12.9898).sin() * 3.0;
            let x: Vec<f32> = (0..rows * columns).map(number).collect();
            let weight: Vec<f32> = (0..columns).map(|i| number(i + 7)).collect();
            let mut out = x.clone();
            rms_norm_in_place(&Pool::new(2).unwrap(), &mut out, columns, &weight, 1e-5);
            let mut portable = x.clone();
            run_portable(Normalize { x: &mut portable, weight: &weight, epsilon: 1e-5 });
            prop_assert_eq!(&out, &portable);
            for (x, out) in x.chunks(columns).zip(out.chunks(columns)).take(3) {
                let mut alone = x.to_vec();
                rms_norm_in_place(&Pool::new(1).unwrap(), &mut alone, columns, &weight, 1e-5);
                prop_assert_eq!(&alone, out);
                for (found, expected) in out.iter().zip(reference(x, &weight, 1e-5)) {
                    prop_assert!((found - expected).abs() <= expected.abs() * 1e-6 + 1e-30);
                }
            }
        }
    }
}
