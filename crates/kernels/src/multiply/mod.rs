//! Products of activations with weight matrices.

mod check;
mod float;
mod integer;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::formats::with_format;
use crate::matrix::ROWS;
use crate::packing::with_scratch;
use crate::pool::SharedValues;
use crate::simd::{Simd, Task, dispatch, run_portable};
use crate::{Activations, Matrix, Pool};

pub use check::check_products;

/// One matrix to multiply with, and where the result goes: output `r` of the `t`-th of `tokens` to `out[t * stride + r]`.
pub struct Product<'a> {
    /// The weights, `[rows, columns]`.
    pub weights: &'a Matrix,
    /// One value to add to each output, if any.
    pub bias: Option<&'a [f32]>,
    /// The rows of the input that are multiplied.
    pub tokens: Range<usize>,
    /// The outputs; values between them (when `stride` is larger than `rows`) stay as they are.
    pub out: &'a mut [f32],
    /// The distance in `out` between an output of one token and the same output of the next.
    pub stride: usize,
}

/// Products that are computed in one parallel region. Lists longer than this take several.
const AT_ONCE: usize = 16;

/// Portions that each thread begins with, at least, where there are rows enough.
const PORTIONS: usize = 8;

/// How far ahead of their use the memory is asked for the weights of a product with one token. Processors do so by
/// themselves, but stop at the ends of pages.
const PREFETCH_BYTES: usize = 1024;

/// Multiplies tokens of `input` with each of the matrices, as many as there may be in one parallel region.
///
/// Quantized weights are multiplied with the inputs rounded to 8 bits, float weights with the inputs as they are. One
/// output depends on one row of weights and one token only, to the last bit.
///
/// # Panics
/// When a matrix does not have the columns of `input` or takes another form of it, a bias does not have one value per row, or an `out` is too short.
pub fn multiply<'a>(pool: &Pool, input: &Activations, products: impl IntoIterator<Item = Product<'a>>) {
    let mut products = products.into_iter().peekable();
    while products.peek().is_some() {
        let mut targets = [const { None }; AT_ONCE];
        for (target, product) in targets.iter_mut().zip(products.by_ref()) {
            check(input, &product);
            let Product { weights, bias, tokens, out, stride } = product;
            *target = Some(Target { weights, bias, tokens, out: SharedValues::new(out), stride });
        }
        multiply_targets(pool, input, &targets);
    }
}

fn check(input: &Activations, product: &Product<'_>) {
    let (rows, columns) = (product.weights.rows(), product.weights.columns());
    assert_eq!(columns, input.columns(), "the matrix must have as many columns as the input");
    assert!(input.suits(product.weights), "the input must be loaded in the form that the matrix takes");
    assert!(product.bias.is_none_or(|bias| bias.len() == rows), "a bias has one value per row");
    assert!(product.tokens.end <= input.tokens(), "the input has no such tokens");
    if !product.tokens.is_empty() && rows > 0 {
        assert!(product.stride >= rows, "the outputs of one token must not overlap the next's");
        assert!(product.out.len() >= (product.tokens.len() - 1) * product.stride + rows, "the output is too short");
    }
}

/// A [`Product`] whose output the threads share.
struct Target<'a> {
    weights: &'a Matrix,
    bias: Option<&'a [f32]>,
    tokens: Range<usize>,
    out: SharedValues<'a>,
    stride: usize,
}

impl Target<'_> {
    /// Stores the product of one row and one token.
    #[inline(always)]
    fn set(&self, token: usize, row: usize, sum: f32) {
        let biased = match self.bias {
            Some(bias) => sum + bias[row],
            None => sum,
        };
        self.out.set((token - self.tokens.start) * self.stride + row, biased);
    }
}

/// Each thread has a run of portions of its own, which lie one after the other in memory, and helps the others when it is
/// done with them, so that one whose core is busy elsewhere holds up nobody for long.
fn multiply_targets(pool: &Pool, input: &Activations, targets: &[Option<Target<'_>>]) {
    let targets = || targets.iter().flatten();
    let rows: usize = targets().map(|target| target.weights.rows()).sum();
    let portion = match pool.threads() {
        1 => rows.next_multiple_of(ROWS).max(ROWS),
        threads => (rows / (threads * PORTIONS)).clamp(ROWS, 64).next_multiple_of(ROWS),
    };
    let portions = |target: &Target<'_>| target.weights.rows().div_ceil(portion);
    pool.share_out(targets().map(portions).sum(), &|own| {
        for mut index in own {
            let mut rest = targets().skip_while(|target| {
                let before = index < portions(target);
                index -= if before { 0 } else { portions(target) };
                !before
            });
            let Some(target) = rest.next() else { break };
            let first = index * portion;
            multiply_rows(input, target, first..target.weights.rows().min(first + portion));
        }
    });
}

/// Multiplies some rows of a matrix with the tokens of its product.
fn multiply_rows(input: &Activations, target: &Target<'_>, rows: Range<usize>) {
    with_format!(target.weights.dtype(),
        float F => dispatch(float::Rows::<F>::new(input, target, rows)),
        quantized F => {
            // Portions are cut at whole tiles.
            let tiles = rows.start / ROWS..rows.end.div_ceil(ROWS);
            with_scratch(|scratch| dispatch(integer::Tiles::<F>::new(input, target, tiles, scratch)));
        }
    );
}

/// The same by the definition of the vector operations, in plain code. `rows` begin and end with tiles.
fn multiply_rows_portably(input: &Activations, target: &Target<'_>, rows: Range<usize>) {
    with_format!(target.weights.dtype(),
        float F => run_portable(float::Rows::<F>::new(input, target, rows)),
        quantized F => {
            let tiles = rows.start / ROWS..rows.end.div_ceil(ROWS);
            with_scratch(|scratch| run_portable(integer::Tiles::<F>::new(input, target, tiles, scratch)));
        }
    );
}
