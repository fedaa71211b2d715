//! Products with quantized weights, in integers.
//!
//! Both weights and inputs are integers times scales, block by block of 32 columns (of 16 in some formats). Eight rows are taken
//! at a time, one in each lane, so that nothing has to be added up across lanes: the products of a block's integers are summed
//! exactly, then scaled and added to the row's running sum, block after block; where a format adds something to all values of
//! a block, that times the sum of the inputs comes next. One token or several, the order is the same.
//!
//! Weights come packed for this (see [`crate::packing`]), or are packed on the way if memory does not suffice for all.

use std::marker::PhantomData;
use std::ops::Range;

use super::{PREFETCH_BYTES, Simd, Target, Task};
use crate::Activations;
use crate::activations::{BLOCKS, GROUP, InputGroup};
use crate::formats::{Quantized, VECTORS};
use crate::matrix::ROWS;
use crate::simd::{CODES, LANES};

/// Tokens that are taken together, so that their sums stay in registers while the weights are unpacked once for all.
const TOKENS: usize = 8;
/// The same with fewer registers, and for what is left.
const FEW_TOKENS: usize = 4;
/// Bytes of inputs that are used for all rows before the next ones, so that they stay in the second cache.
const INPUT_BYTES: usize = 384 << 10;

/// Multiplies tiles of eight rows of a matrix of format `F` with all tokens.
pub(super) struct Tiles<'a, F> {
    input: &'a Activations,
    target: &'a Target<'a>,
    tiles: Range<usize>,
    /// Where tiles are packed that are not yet.
    scratch: &'a mut Vec<u8>,
    format: PhantomData<F>,
}

impl<F: Quantized> Task for Tiles<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Tiles { input, target, tiles, scratch, .. } = self;
        let all = target.tokens.clone();
        let token_bytes = input.columns().div_ceil(GROUP) * size_of::<InputGroup>();
        let together = (INPUT_BYTES / token_bytes).max(TOKENS) / TOKENS * TOKENS;
        for first in all.clone().step_by(together) {
            let tokens = first..all.end.min(first + together);
            for index in tiles.clone() {
                let packed = target.weights.tile::<F>(index, scratch);
                Tile::<F> { input, target, packed, index, format: PhantomData }.multiply(simd, tokens.clone());
            }
        }
    }
}

impl<'a, F: Quantized> Tiles<'a, F> {
    pub(super) fn new(
        input: &'a Activations,
        target: &'a Target<'a>,
        tiles: Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> Tiles<'a, F> {
        Tiles { input, target, tiles, scratch, format: PhantomData }
    }
}

/// Eight packed rows, the `index`-th of the matrix, and what they are multiplied with.
struct Tile<'a, F> {
    input: &'a Activations,
    target: &'a Target<'a>,
    packed: &'a [u8],
    index: usize,
    format: PhantomData<F>,
}

impl<F: Quantized> Tile<'_, F> {
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, tokens: Range<usize>) {
        let mut first = tokens.start;
        while first < tokens.end {
            first += match tokens.end - first {
                1 => self.some_tokens::<S, 1>(simd, first..tokens.end),
                5.. if S::MANY_REGISTERS => self.some_tokens::<S, TOKENS>(simd, first..tokens.end),
                _ => self.some_tokens::<S, FEW_TOKENS>(simd, first..tokens.end),
            };
        }
    }

    /// Multiplies with the first `T` of these tokens; where there are fewer, the last one is taken again. Returns `T`.
    #[inline(always)]
    fn some_tokens<S: Simd, const T: usize>(&self, simd: S, tokens: Range<usize>) -> usize {
        let mut inputs = [&[][..]; T];
        for (t, input) in inputs.iter_mut().enumerate() {
            *input = self.input.groups((tokens.start + t).min(tokens.end - 1));
        }
        let sums = products::<S, F, T>(simd, self.packed, inputs);
        let rows = self.index * ROWS..self.target.weights.rows().min((self.index + 1) * ROWS);
        for (token, sums) in tokens.zip(sums) {
            for (row, sum) in rows.clone().zip(sums) {
                self.target.set(token, row, sum);
            }
        }
        T
    }
}

/// The products of eight packed rows with `T` tokens.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
fn products<S: Simd, F: Quantized, const T: usize>(
    simd: S,
    packed: &[u8],
    inputs: [&[InputGroup]; T],
) -> [[f32; LANES]; T] {
    let blocks_packed = F::VALUES / CODES;
    let mut sums = [simd.splat(0.0); T];
    for (group, packed) in packed.chunks(GROUP / F::VALUES * F::PACKED_BYTES).enumerate() {
        let mut here = [&inputs[0][group]; T];
        for t in 1..T {
            here[t] = &inputs[t][group];
        }
        for block in 0..BLOCKS.min(packed.len() / F::PACKED_BYTES * blocks_packed) {
            let packed = &packed[block / blocks_packed * F::PACKED_BYTES..][..F::PACKED_BYTES];
            if T == 1 {
                let part = F::PACKED_BYTES / blocks_packed;
                simd.prefetch(&packed[block % blocks_packed * part..][..part], PREFETCH_BYTES);
            }
            add_block::<S, F, T>(simd, packed, block, here, &mut sums);
        }
    }
    let mut stored = [[0.0; LANES]; T];
    for t in 0..T {
        simd.store(sums[t], &mut stored[t]);
    }
    stored
}

/// Adds the products of 32 columns of eight rows with `T` tokens. `block` counts within the group of inputs.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // As above.
fn add_block<S: Simd, F: Quantized, const T: usize>(
    simd: S,
    packed: &[u8],
    block: usize,
    inputs: [&InputGroup; T],
    sums: &mut [S::Floats; T],
) {
    let place = block % (F::VALUES / CODES);
    let scales = F::scales(simd, packed, place);
    let minimums = F::minimums(simd, packed, place);
    let parts = if F::HALVES { 2 } else { 1 };
    for part in 0..parts {
        let mut dots = [simd.splat_shifted(0, 0); T];
        if let Some(shift) = F::ZERO_SHIFT {
            for t in 0..T {
                let input = inputs[t];
                let sum = if F::HALVES { input.negated_halves[block][part] } else { input.negated[block] };
                dots[t] = simd.splat_shifted(sum, shift);
            }
        }
        // Token by token within each vector of codes, as sums of one token have to wait for each other.
        for i in part * VECTORS / parts..(part + 1) * VECTORS / parts {
            let codes = F::codes(simd, packed, place, i);
            for t in 0..T {
                let input = simd.splat_codes(&inputs[t].codes[block].as_chunks::<4>().0[i]);
                dots[t] = match F::WIDE {
                    true => simd.accumulate::<true>(dots[t], codes, input),
                    false => simd.accumulate::<false>(dots[t], codes, input),
                };
            }
        }
        for t in 0..T {
            let input = inputs[t];
            let scale = simd.mul(scales[part], simd.splat(input.scales[block]));
            sums[t] = simd.fused(simd.to_floats(dots[t]), scale, sums[t]);
            if F::MINIMUMS {
                let sum = match F::HALVES {
                    true => -input.negated_halves[block][part] as f32 * input.scales[block],
                    false => input.sums[block],
                };
                sums[t] = simd.fused(minimums[part], simd.splat(sum), sums[t]);
            }
        }
    }
}
