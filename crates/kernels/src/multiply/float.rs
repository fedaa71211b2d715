//! Products with floating-point weights: lane `i` of a sum adds up columns `i`, `i + 8` and so on, in that order, and the lanes
//! are added up at the end.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::{PREFETCH_BYTES, Simd, Target, Task};
use crate::Activations;
use crate::formats::Float;
use crate::simd::LANES;

/// Multiplies rows of a matrix of format `F` with all tokens.
pub(super) struct Rows<'a, F> {
    input: &'a Activations,
    target: &'a Target<'a>,
    rows: Range<usize>,
    format: PhantomData<F>,
}

impl<F: Float> Task for Rows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let tokens = &self.target.tokens;
        let many = tokens.len() > 1;
        for row in self.rows.clone().step_by(4) {
            for token in tokens.clone().step_by(4) {
                match (many, S::MANY_REGISTERS) {
                    (false, _) => self.tile::<S, 4, 1>(simd, row, token),
                    (true, true) => self.tile::<S, 4, 4>(simd, row, token),
                    (true, false) => {
                        self.tile::<S, 2, 4>(simd, row, token);
                        self.tile::<S, 2, 4>(simd, row + 2, token);
                    }
                }
            }
        }
    }
}

impl<'a, F: Float> Rows<'a, F> {
    pub(super) fn new(input: &'a Activations, target: &'a Target<'a>, rows: Range<usize>) -> Rows<'a, F> {
        Rows { input, target, rows, format: PhantomData }
    }

    /// Multiplies `R` rows from `row` on with `T` tokens from `token` on. Where fewer are left, the last one is taken again.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const T: usize>(&self, simd: S, row: usize, token: usize) {
        let (last_row, last_token) = (self.rows.end - 1, self.target.tokens.end - 1);
        let columns = self.target.weights.columns();
        let whole = columns / LANES * LANES;
        let rows: [&[u8]; R] = from_fn(|r| self.target.weights.row(last_row.min(row + r)));
        let inputs: [&[f32]; T] = from_fn(|t| self.input.values(last_token.min(token + t)));
        let mut sums = [[[0.0; LANES]; T]; R];
        add_products::<S, F, R, T>(simd, rows, inputs, whole, &mut sums);
        if whole < columns {
            // The rest of each row, padded with zeros to a vector.
            let padded: [[u8; 4 * LANES]; R] = from_fn(|r| {
                let mut padded = [0; 4 * LANES];
                padded[..(columns - whole) * F::BYTES].copy_from_slice(&rows[r][whole * F::BYTES..]);
                padded
            });
            let inputs = inputs.map(|input| &input[whole..]);
            add_products::<S, F, R, T>(simd, padded.each_ref().map(|row| &row[..]), inputs, LANES, &mut sums);
        }
        for (row, sums) in (row..=last_row).zip(&sums) {
            for (token, sum) in (token..=last_token).zip(sums) {
                self.target.set(token, row, simd.sum(simd.load(sum)));
            }
        }
    }
}

/// Adds the products of the first `columns` columns, a multiple of eight, of `R` rows and `T` tokens to sums that stay in
/// registers meanwhile.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
fn add_products<S: Simd, F: Float, const R: usize, const T: usize>(
    simd: S,
    rows: [&[u8]; R],
    inputs: [&[f32]; T],
    columns: usize,
    stored: &mut [[[f32; LANES]; T]; R],
) {
    let bytes = LANES * F::BYTES;
    let rows: [&[u8]; R] = from_fn(|r| &rows[r][..columns * F::BYTES]);
    let inputs: [_; T] = from_fn(|t| &inputs[t].as_chunks::<LANES>().0[..columns / LANES]);
    let mut sums = [[simd.splat(0.0); T]; R];
    for r in 0..R {
        for t in 0..T {
            sums[r][t] = simd.load(&stored[r][t]);
        }
    }
    for i in 0..columns / LANES {
        for r in 0..R {
            let weights = &rows[r][i * bytes..(i + 1) * bytes];
            if T == 1 {
                simd.prefetch(weights, PREFETCH_BYTES);
            }
            let weights = F::load(simd, weights);
            for t in 0..T {
                sums[r][t] = simd.fused(weights, simd.load(&inputs[t][i]), sums[r][t]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            simd.store(sums[r][t], &mut stored[r][t]);
        }
    }
}
