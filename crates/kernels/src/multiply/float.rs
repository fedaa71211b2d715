//! Products with floating-point weights.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::{Simd, Target, Task};
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

impl<'a, F: Float> Rows<'a, F> {
    pub(super) fn new(input: &'a Activations, target: &'a Target<'a>, rows: Range<usize>) -> Rows<'a, F> {
        Rows { input, target, rows, format: PhantomData }
    }

    /// Rows from `first` on with tokens from `token` on.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
    fn tile<S: Simd, const ROWS: usize, const TOKENS: usize>(&self, simd: S, first: usize, token: usize) {
        let rows = from_fn(|i| self.target.weights.row(first + i));
        let tokens = from_fn(|i| self.input.values(token + i));
        let sums = dots::<S, F, ROWS, TOKENS>(simd, rows, tokens);
        for r in 0..ROWS {
            for t in 0..TOKENS {
                self.target.set(token + t, first + r, simd.sum(sums[r][t]));
            }
        }
    }
}

impl<F: Float> Task for Rows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let tokens = self.input.tokens();
        let mut row = self.rows.start;
        while row < self.rows.end {
            if tokens == 1 && row + 4 <= self.rows.end {
                self.tile::<S, 4, 1>(simd, row, 0);
                row += 4;
                continue;
            }
            let pair = row + 2 <= self.rows.end;
            let mut token = 0;
            while token < tokens {
                let four = token + 4 <= tokens;
                match (pair, four) {
                    (true, true) => self.tile::<S, 2, 4>(simd, row, token),
                    (true, false) => self.tile::<S, 2, 1>(simd, row, token),
                    (false, true) => self.tile::<S, 1, 4>(simd, row, token),
                    (false, false) => self.tile::<S, 1, 1>(simd, row, token),
                }
                token += if four { 4 } else { 1 };
            }
            row += if pair { 2 } else { 1 };
        }
    }
}

/// The products of each row with each token, as eight partial sums: lane `i` sums columns `i`, `i + 8` and so on.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // As above.
fn dots<S: Simd, F: Float, const ROWS: usize, const TOKENS: usize>(
    simd: S,
    rows: [&[u8]; ROWS],
    tokens: [&[f32]; TOKENS],
) -> [[S::Floats; TOKENS]; ROWS] {
    let mut sums = [[simd.splat(0.0); TOKENS]; ROWS];
    let bytes = LANES * F::BYTES;
    let columns = rows[0].len() / F::BYTES;
    let whole = columns / LANES;
    let tokens = tokens.map(|token| &token.as_chunks::<LANES>().0[..columns.div_ceil(LANES)]);
    let rows = rows.map(|row| &row[..columns * F::BYTES]);
    for i in 0..whole {
        let mut x = [simd.splat(0.0); TOKENS];
        for t in 0..TOKENS {
            x[t] = simd.load(&tokens[t][i]);
        }
        for r in 0..ROWS {
            let weights = F::load(simd, &rows[r][i * bytes..(i + 1) * bytes]);
            for t in 0..TOKENS {
                sums[r][t] = simd.fused(weights, x[t], sums[r][t]);
            }
        }
    }
    if whole * LANES < columns {
        for r in 0..ROWS {
            let rest = &rows[r][whole * bytes..];
            let mut padded = [0; 32];
            padded[..rest.len()].copy_from_slice(rest);
            let weights = F::load(simd, &padded);
            for t in 0..TOKENS {
                sums[r][t] = simd.fused(weights, simd.load(&tokens[t][whole]), sums[r][t]);
            }
        }
    }
    sums
}
