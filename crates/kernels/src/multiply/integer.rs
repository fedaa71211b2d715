//! Products with quantized weights, in integers.
//!
//! Both weights and inputs are integers times scales, block by block of 32 columns. The products of the integers are summed
//! exactly, in eight lanes; then each lane is scaled and added to its running sum, block after block; after each group of
//! blocks come the offsets that some formats add to all values of a block, times the sums of the inputs. The lanes are added
//! up at the very end. The two paths below do all this in the same order:
//!
//! * For one token, weights are unpacked in registers and used at once.
//! * For several tokens, a few rows of weights are unpacked into [`Panel`]s in the nearest cache, and then taken by tiles of
//!   rows and tokens whose sums stay in registers.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::{PREFETCH_BYTES, Simd, Target, Task};
use crate::Activations;
use crate::activations::{BLOCKS, InputGroup};
use crate::formats::{Factors, GROUP, Quantized};
use crate::simd::{CODES, LANES};

/// Rows that are unpacked together for several tokens.
pub(super) const ROWS: usize = 4;
/// Groups of columns that are unpacked together: four rows of them take 6 KiB.
const PANEL_GROUPS: usize = 4;
/// Tokens whose running sums are kept while a panel is used.
const TOKENS: usize = 64;
/// Tokens that are taken together with a few rows, so that their sums stay in registers.
const TILE_TOKENS: usize = 4;
/// Rows that are multiplied together with a single token.
const TOKEN_ROWS: usize = 2;

/// Multiplies rows of a matrix of format `F` with all tokens.
pub(super) struct Rows<'a, F> {
    input: &'a Activations,
    target: &'a Target<'a>,
    rows: Range<usize>,
    format: PhantomData<F>,
}

impl<F: Quantized> Task for Rows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.input.tokens() == 1 { self.one_token(simd) } else { self.many_tokens(simd) }
    }
}

impl<'a, F: Quantized> Rows<'a, F> {
    /// Bytes of a whole group of columns.
    const GROUP_BYTES: usize = GROUP / F::VALUES * F::BYTES;

    pub(super) fn new(input: &'a Activations, target: &'a Target<'a>, rows: Range<usize>) -> Rows<'a, F> {
        Rows { input, target, rows, format: PhantomData }
    }

    #[inline(always)]
    fn one_token<S: Simd>(&self, simd: S) {
        let inputs = self.input.groups(0);
        for first in self.rows.clone().step_by(TOKEN_ROWS) {
            let rows = from_fn(|i| self.target.weights.row(self.row_or_last(first + i)));
            let sums = self.dots(simd, rows, inputs);
            for (row, sum) in (first..self.rows.end).zip(sums) {
                self.target.set(0, row, sum);
            }
        }
    }

    /// A row of this portion. Where fewer rows are left than are taken together, the last one is taken again.
    #[inline(always)]
    fn row_or_last(&self, row: usize) -> usize {
        row.min(self.rows.end - 1)
    }

    /// The products of some rows with one token.
    #[inline(always)]
    fn dots<S: Simd>(&self, simd: S, rows: [&[u8]; TOKEN_ROWS], inputs: &[InputGroup]) -> [f32; TOKEN_ROWS] {
        let mut sums = [simd.splat(0.0); TOKEN_ROWS];
        let whole = rows[0].len() / Self::GROUP_BYTES;
        let mut groups = rows;
        for (i, input) in inputs[..whole].iter().enumerate() {
            for (group, row) in groups.iter_mut().zip(rows) {
                *group = &row[i * Self::GROUP_BYTES..][..Self::GROUP_BYTES];
                simd.prefetch(group, PREFETCH_BYTES);
            }
            dots_with_group::<S, F>(simd, groups, input, BLOCKS, &mut sums);
        }
        if let Some(input) = inputs.get(whole) {
            for (group, row) in groups.iter_mut().zip(rows) {
                *group = &row[whole * Self::GROUP_BYTES..];
            }
            dots_with_group::<S, F>(simd, groups, input, groups[0].len() / F::BYTES, &mut sums);
        }
        let mut results = [0.0; TOKEN_ROWS];
        for r in 0..TOKEN_ROWS {
            results[r] = simd.sum(sums[r]);
        }
        results
    }

    #[inline(always)]
    fn many_tokens<S: Simd>(&self, simd: S) {
        let mut panels = [[Panel::EMPTY; PANEL_GROUPS]; ROWS];
        let mut sums = [[[0.0; LANES]; TOKENS]; ROWS];
        let groups = self.input.columns().div_ceil(GROUP);
        for first_token in (0..self.input.tokens()).step_by(TOKENS) {
            let tokens = first_token..self.input.tokens().min(first_token + TOKENS);
            for first_row in self.rows.clone().step_by(ROWS) {
                for sums in &mut sums {
                    sums[..tokens.len().next_multiple_of(TILE_TOKENS)].fill([0.0; LANES]);
                }
                for first_group in (0..groups).step_by(PANEL_GROUPS) {
                    let groups = first_group..groups.min(first_group + PANEL_GROUPS);
                    for (i, panels) in panels.iter_mut().enumerate() {
                        self.unpack(simd, self.row_or_last(first_row + i), groups.clone(), panels);
                    }
                    self.take_panels(simd, &panels, tokens.clone(), groups, &mut sums);
                }
                for (row, sums) in (first_row..self.rows.end).zip(&sums) {
                    for (token, sums) in tokens.clone().zip(sums) {
                        self.target.set(token, row, simd.sum(simd.load(sums)));
                    }
                }
            }
        }
    }

    /// Unpacks some groups of columns of one row.
    #[inline(always)]
    fn unpack<S: Simd>(&self, simd: S, row: usize, groups: Range<usize>, panels: &mut [Panel; PANEL_GROUPS]) {
        let bytes = self.target.weights.row(row);
        for (group, panel) in groups.zip(panels) {
            let from = group * Self::GROUP_BYTES;
            match bytes.get(from..from + Self::GROUP_BYTES) {
                Some(group) => panel.fill::<S, F>(simd, group, BLOCKS),
                None => panel.fill::<S, F>(simd, &bytes[from..], bytes[from..].len() / F::BYTES),
            }
        }
    }

    /// Adds the products of all tokens with the unpacked columns of some rows to their running sums.
    #[inline(always)]
    fn take_panels<S: Simd>(
        &self,
        simd: S,
        panels: &[[Panel; PANEL_GROUPS]; ROWS],
        tokens: Range<usize>,
        groups: Range<usize>,
        sums: &mut [[[f32; LANES]; TOKENS]; ROWS],
    ) {
        let blocks = (self.input.columns() - groups.start * GROUP).div_ceil(CODES);
        for first in (0..tokens.len()).step_by(TILE_TOKENS) {
            // Where fewer tokens are left than are taken together, the last one is taken again.
            let token = |i: usize| (tokens.start + first + i).min(tokens.end - 1);
            let inputs = from_fn(|i| &self.input.groups(token(i))[groups.clone()]);
            if S::MANY_REGISTERS {
                tile::<S, F, ROWS>(simd, panels, inputs, blocks, sums, first);
            } else {
                for row in (0..ROWS).step_by(2) {
                    tile::<S, F, 2>(simd, &panels[row..], inputs, blocks, &mut sums[row..], first);
                }
            }
        }
    }
}

/// Evaluates a block of code for each of the blocks of a group, if there are as many, with its index as a constant.
macro_rules! for_blocks {
    ($count:expr, $index:ident => $body:expr) => {
        for_blocks!(@ $count, $index => $body, 0 1 2 3 4 5 6 7)
    };
    (@ $count:expr, $index:ident => $body:expr, $($value:literal)*) => {
        $(if $value < $count {
            const $index: usize = $value;
            $body
        })*
    };
}

/// Adds the products of some rows' groups of weights, of `blocks` blocks each, with one group of inputs to running sums.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
fn dots_with_group<S: Simd, F: Quantized>(
    simd: S,
    groups: [&[u8]; TOKEN_ROWS],
    input: &InputGroup,
    blocks: usize,
    sums: &mut [S::Floats; TOKEN_ROWS],
) {
    const N: usize = TOKEN_ROWS;
    let mut factors = [Factors::Blocks { scales: simd.splat(0.0), offsets: simd.splat(0.0) }; N];
    for r in 0..N {
        factors[r] = times_input(simd, F::factors(simd, groups[r]), input);
    }
    for_blocks!(blocks, BLOCK => {
        let x = simd.load_codes(&input_codes::<F>(input)[BLOCK]);
        for r in 0..N {
            let scale = match factors[r] {
                Factors::Blocks { scales, .. } => simd.spread(scales, BLOCK),
                Factors::Halves { scales, .. } => simd.spread_pair(scales[BLOCK / 4], BLOCK % 4),
            };
            let codes = ordered_codes::<S, F>(simd, groups[r], BLOCK);
            sums[r] = simd.fused(simd.to_floats(dot::<S, F>(simd, codes, x)), scale, sums[r]);
        }
    });
    if !F::SIGNED {
        for r in 0..N {
            sums[r] = add_offsets(simd, factors[r], input, sums[r]);
        }
    }
}

/// The scales, multiplied with those of the inputs, and the offsets.
#[inline(always)]
fn times_input<S: Simd>(simd: S, factors: Factors<S>, input: &InputGroup) -> Factors<S> {
    match factors {
        Factors::Blocks { scales, offsets } => {
            Factors::Blocks { scales: simd.mul(scales, simd.load(&input.scales)), offsets }
        }
        Factors::Halves { scales: [low, high], offsets } => {
            let low = simd.mul(low, simd.load(&input.half_scales[0]));
            let high = simd.mul(high, simd.load(&input.half_scales[1]));
            Factors::Halves { scales: [low, high], offsets }
        }
    }
}

/// The running sum, plus the product of a group's offsets with its inputs.
#[inline(always)]
fn add_offsets<S: Simd>(simd: S, factors: Factors<S>, input: &InputGroup, sum: S::Floats) -> S::Floats {
    match factors {
        Factors::Blocks { offsets, .. } => simd.fused(offsets, simd.load(&input.sums), sum),
        Factors::Halves { offsets: [low, high], .. } => {
            let sum = simd.fused(low, simd.load(&input.half_sums[0]), sum);
            simd.fused(high, simd.load(&input.half_sums[1]), sum)
        }
    }
}

/// A block of inputs in the order in which the format's codes are multiplied.
#[inline(always)]
fn input_codes<F: Quantized>(input: &InputGroup) -> &[[u8; CODES]; BLOCKS] {
    if F::HALVES { &input.interleaved } else { &input.codes }
}

/// A block of weights in that same order.
#[inline(always)]
fn ordered_codes<S: Simd, F: Quantized>(simd: S, group: &[u8], block: usize) -> S::Codes {
    let codes = F::codes(simd, group, block);
    if F::HALVES { simd.interleave(codes) } else { codes }
}

/// The product of a block of weights with a block of inputs, in lanes of four columns.
#[inline(always)]
fn dot<S: Simd, F: Quantized>(simd: S, codes: S::Codes, input: S::Codes) -> S::Integers {
    if F::SIGNED { simd.dot_signed(codes, input) } else { simd.dot_unsigned(codes, input) }
}

/// Unpacked weights of one row, one group of columns.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Panel {
    codes: [[u8; CODES]; BLOCKS],
    /// Scales and offsets of blocks (in the first eight places) or of halves of blocks.
    scales: [[f32; LANES]; 2],
    offsets: [[f32; LANES]; 2],
}

impl Panel {
    const EMPTY: Panel = Panel { codes: [[0; CODES]; BLOCKS], scales: [[0.0; LANES]; 2], offsets: [[0.0; LANES]; 2] };

    /// Unpacks a group of weights of `blocks` blocks.
    #[inline(always)]
    fn fill<S: Simd, F: Quantized>(&mut self, simd: S, group: &[u8], blocks: usize) {
        match F::factors(simd, group) {
            Factors::Blocks { scales, offsets } => {
                simd.store(scales, &mut self.scales[0]);
                simd.store(offsets, &mut self.offsets[0]);
            }
            Factors::Halves { scales, offsets } => {
                for half in 0..2 {
                    simd.store(scales[half], &mut self.scales[half]);
                    simd.store(offsets[half], &mut self.offsets[half]);
                }
            }
        }
        for_blocks!(blocks, BLOCK => {
            simd.store_codes(ordered_codes::<S, F>(simd, group, BLOCK), &mut self.codes[BLOCK]);
        });
    }

    /// The scales and offsets, in vectors again.
    #[inline(always)]
    fn factors<S: Simd, F: Quantized>(&self, simd: S) -> Factors<S> {
        let (scales, offsets) = (simd.load(&self.scales[0]), simd.load(&self.offsets[0]));
        if F::HALVES {
            let scales = [scales, simd.load(&self.scales[1])];
            Factors::Halves { scales, offsets: [offsets, simd.load(&self.offsets[1])] }
        } else {
            Factors::Blocks { scales, offsets }
        }
    }
}

/// Adds the products of the first `R` unpacked rows, up to `blocks` blocks of them, with some tokens to the running sums of
/// tokens from `first` on.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
fn tile<S: Simd, F: Quantized, const R: usize>(
    simd: S,
    panels: &[[Panel; PANEL_GROUPS]],
    inputs: [&[InputGroup]; TILE_TOKENS],
    blocks: usize,
    stored: &mut [[[f32; LANES]; TOKENS]],
    first: usize,
) {
    const T: usize = TILE_TOKENS;
    let panels: [_; R] = from_fn(|r| &panels[r]);
    let mut sums = [[simd.splat(0.0); T]; R];
    for r in 0..R {
        for t in 0..T {
            sums[r][t] = simd.load(&stored[r][first + t]);
        }
    }
    // The products of scales go through memory because reading one value of it into all lanes costs less than moving it there
    // from another lane.
    let mut scales = [[[[0.0; LANES]; 2]; T]; R];
    for group in 0..inputs[0].len().min(PANEL_GROUPS) {
        for r in 0..R {
            let factors = panels[r][group].factors::<S, F>(simd);
            for t in 0..T {
                match times_input(simd, factors, &inputs[t][group]) {
                    Factors::Blocks { scales: products, .. } => simd.store(products, &mut scales[r][t][0]),
                    Factors::Halves { scales: [low, high], .. } => {
                        simd.store(low, &mut scales[r][t][0]);
                        simd.store(high, &mut scales[r][t][1]);
                    }
                }
            }
        }
        for block in 0..BLOCKS.min(blocks - group * BLOCKS) {
            for t in 0..T {
                let x = simd.load_codes(&input_codes::<F>(&inputs[t][group])[block]);
                for r in 0..R {
                    let codes = simd.load_codes(&panels[r][group].codes[block]);
                    let scales = scales[r][t].as_flattened();
                    let scale = match F::HALVES {
                        true => simd.splat_pair(&scales.as_chunks().0[block]),
                        false => simd.splat(scales[block]),
                    };
                    sums[r][t] = simd.fused(simd.to_floats(dot::<S, F>(simd, codes, x)), scale, sums[r][t]);
                }
            }
        }
        if !F::SIGNED {
            for r in 0..R {
                let factors = panels[r][group].factors::<S, F>(simd);
                for t in 0..T {
                    sums[r][t] = add_offsets(simd, factors, &inputs[t][group], sums[r][t]);
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            simd.store(sums[r][t], &mut stored[r][first + t]);
        }
    }
}
