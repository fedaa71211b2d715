//! Products with quantized weights, in integers.
//!
//! Both weights and inputs are integers times scales, block by block of 32 columns. The products of the integers are summed
//! exactly, in eight lanes; then each lane is scaled and added to its running sum, block after block; then come the offsets
//! that some formats add to all values of a block, times the sums of the inputs. The lanes are added up at the very end.
//! The two paths below do all this in the same order:
//!
//! * For one token, weights are unpacked in registers and used at once.
//! * For several tokens, a few rows of weights are unpacked into a [`Panel`] in the nearest cache, and then taken by tiles of
//!   rows and tokens whose sums stay in registers.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;

use super::{Simd, Target, Task};
use crate::Activations;
use crate::activations::{BLOCKS, InputGroup};
use crate::formats::{GROUP, Quantized, Sink};
use crate::simd::{CODES, LANES};

/// Rows that are unpacked together for several tokens.
pub(super) const ROWS: usize = 4;
/// Groups of columns that are unpacked together: four rows of them take 9 KiB.
const PANEL_GROUPS: usize = 4;
/// Tokens whose running sums are kept while a panel is used.
const TOKENS: usize = 64;
/// Rows and tokens whose sums are kept in registers.
const TILE_ROWS: usize = 2;
const TILE_TOKENS: usize = 4;

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
        let groups = self.input.groups(0);
        let mut row = self.rows.start;
        // Two rows at a time, because the sums of one alone would wait for each other.
        while row + 2 <= self.rows.end {
            let sums = self.dots(simd, [row, row + 1], groups);
            self.target.set(0, row, simd.sum(sums[0]));
            self.target.set(0, row + 1, simd.sum(sums[1]));
            row += 2;
        }
        if row < self.rows.end {
            let [sum] = self.dots(simd, [row], groups);
            self.target.set(0, row, simd.sum(sum));
        }
    }

    /// The products of some rows with one token, as eight partial sums.
    #[inline(always)]
    fn dots<S: Simd, const N: usize>(&self, simd: S, rows: [usize; N], groups: &[InputGroup]) -> [S::Floats; N] {
        let rows = rows.map(|row| self.target.weights.row(row));
        let mut sums = [simd.splat(0.0); N];
        let whole = rows[0].len() / Self::GROUP_BYTES;
        for (i, input) in groups[..whole].iter().enumerate() {
            for (row, sum) in rows.iter().zip(&mut sums) {
                let bytes = &row[i * Self::GROUP_BYTES..][..Self::GROUP_BYTES];
                F::unpack(simd, bytes, &mut Dot::<S, F> { simd, input, sum, format: PhantomData });
            }
        }
        if let Some(input) = groups.get(whole) {
            for (row, sum) in rows.iter().zip(&mut sums) {
                let bytes = &row[whole * Self::GROUP_BYTES..];
                F::unpack(simd, bytes, &mut Dot::<S, F> { simd, input, sum, format: PhantomData });
            }
        }
        sums
    }

    #[inline(always)]
    fn many_tokens<S: Simd>(&self, simd: S) {
        let mut panels = [[Panel::EMPTY; PANEL_GROUPS]; ROWS];
        let groups = self.input.columns().div_ceil(GROUP);
        for first_token in (0..self.input.tokens()).step_by(TOKENS) {
            let tokens = first_token..self.input.tokens().min(first_token + TOKENS);
            for first_row in self.rows.clone().step_by(ROWS) {
                let rows = first_row..self.rows.end.min(first_row + ROWS);
                let mut sums = [[[0.0; LANES]; TOKENS]; ROWS];
                for first_group in (0..groups).step_by(PANEL_GROUPS) {
                    let groups = first_group..groups.min(first_group + PANEL_GROUPS);
                    for (row, panels) in rows.clone().zip(&mut panels) {
                        self.unpack(simd, row, groups.clone(), panels);
                    }
                    self.take_panels(simd, &panels[..rows.len()], tokens.clone(), groups, &mut sums);
                }
                for (row, sums) in rows.zip(&sums) {
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
            let mut filler = Filler { simd, panel };
            match bytes.get(from..from + Self::GROUP_BYTES) {
                Some(bytes) => F::unpack(simd, bytes, &mut filler),
                None => F::unpack(simd, &bytes[from..], &mut filler),
            }
        }
    }

    /// Adds the products of all tokens with the unpacked columns to the running sums.
    #[inline(always)]
    fn take_panels<S: Simd>(
        &self,
        simd: S,
        panels: &[[Panel; PANEL_GROUPS]],
        tokens: Range<usize>,
        groups: Range<usize>,
        sums: &mut [[[f32; LANES]; TOKENS]; ROWS],
    ) {
        let inputs = |token: usize| &self.input.groups(token)[groups.clone()];
        let blocks = (self.input.columns() - groups.start * GROUP).div_ceil(CODES);
        for (panels, sums) in panels.chunks(TILE_ROWS).zip(sums.chunks_mut(TILE_ROWS)) {
            let mut token = tokens.start;
            while token < tokens.end {
                let place = token - tokens.start;
                match (panels, &mut *sums, token + TILE_TOKENS <= tokens.end) {
                    ([a, b], [x, y], true) => {
                        let (x, y) = (&mut x[place..place + TILE_TOKENS], &mut y[place..place + TILE_TOKENS]);
                        let tokens = from_fn(|i| inputs(token + i));
                        tile::<S, F, TILE_ROWS, TILE_TOKENS>(simd, [a, b], tokens, blocks, [x, y]);
                    }
                    ([a, b], [x, y], false) => {
                        let sums = [&mut x[place..=place], &mut y[place..=place]];
                        tile::<S, F, TILE_ROWS, 1>(simd, [a, b], [inputs(token)], blocks, sums);
                    }
                    ([a], [x, ..], true) => {
                        let tokens = from_fn(|i| inputs(token + i));
                        tile::<S, F, 1, TILE_TOKENS>(simd, [a], tokens, blocks, [&mut x[place..place + TILE_TOKENS]]);
                    }
                    ([a], [x, ..], false) => {
                        tile::<S, F, 1, 1>(simd, [a], [inputs(token)], blocks, [&mut x[place..=place]]);
                    }
                    _ => {}
                }
                token += if token + TILE_TOKENS <= tokens.end { TILE_TOKENS } else { 1 };
            }
        }
    }
}

/// Unpacked weights of one row, one group of columns.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Panel {
    codes: [[u8; CODES]; BLOCKS],
    scales: [[f32; LANES]; BLOCKS],
    offsets: Offsets<[f32; LANES]>,
}

/// What a format adds to the values of a group's blocks.
#[derive(Clone, Copy)]
enum Offsets<V> {
    None,
    Blocks(V),
    Halves([V; 2]),
}

impl Panel {
    const EMPTY: Panel = Panel { codes: [[0; CODES]; BLOCKS], scales: [[0.0; LANES]; BLOCKS], offsets: Offsets::None };
}

/// Adds the products of some unpacked rows, `blocks` blocks of them, and some tokens to the running sums.
#[inline(always)]
fn tile<S: Simd, F: Quantized, const R: usize, const T: usize>(
    simd: S,
    panels: [&[Panel; PANEL_GROUPS]; R],
    inputs: [&[InputGroup]; T],
    blocks: usize,
    stored: [&mut [[f32; LANES]]; R],
) {
    let mut sums: [[S::Floats; T]; R] = from_fn(|r| from_fn(|t| simd.load(&stored[r][t])));
    for group in 0..inputs[0].len().min(PANEL_GROUPS) {
        let inputs = inputs.map(|input| &input[group]);
        let panels = panels.map(|panels| &panels[group]);
        for block in 0..BLOCKS.min(blocks - group * BLOCKS) {
            let codes = panels.map(|panel| simd.load_codes(&panel.codes[block]));
            let scales = panels.map(|panel| simd.load(&panel.scales[block]));
            for t in 0..T {
                let input = simd.load_codes(&inputs[t].codes[block]);
                let scale = simd.splat(inputs[t].scales[block]);
                for r in 0..R {
                    sums[r][t] = scaled_dot::<S, F>(simd, codes[r], scales[r], input, scale, sums[r][t]);
                }
            }
        }
        for (sums, panel) in sums.iter_mut().zip(panels) {
            let offsets = match panel.offsets {
                Offsets::None => Offsets::None,
                Offsets::Blocks(offsets) => Offsets::Blocks(simd.load(&offsets)),
                Offsets::Halves(offsets) => Offsets::Halves(offsets.map(|offsets| simd.load(&offsets))),
            };
            for (sum, input) in sums.iter_mut().zip(inputs) {
                *sum = with_offsets(simd, offsets, input, *sum);
            }
        }
    }
    for (stored, sums) in stored.into_iter().zip(sums) {
        for (stored, sum) in stored.iter_mut().zip(sums) {
            simd.store(sum, stored);
        }
    }
}

/// The running sum, plus the product of a block of weights and one of inputs.
#[inline(always)]
fn scaled_dot<S: Simd, F: Quantized>(
    simd: S,
    codes: S::Codes,
    scales: S::Floats,
    input: S::Codes,
    input_scale: S::Floats,
    sum: S::Floats,
) -> S::Floats {
    let dot = if F::SIGNED { simd.dot_signed(codes, input) } else { simd.dot_unsigned(codes, input) };
    simd.fused(simd.to_floats(dot), simd.mul(scales, input_scale), sum)
}

/// The running sum, plus the product of a group's offsets and inputs.
#[inline(always)]
fn with_offsets<S: Simd>(simd: S, offsets: Offsets<S::Floats>, input: &InputGroup, sum: S::Floats) -> S::Floats {
    match offsets {
        Offsets::None => sum,
        Offsets::Blocks(offsets) => simd.fused(offsets, simd.load(&input.sums), sum),
        Offsets::Halves([low, high]) => {
            let sum = simd.fused(low, simd.load(&input.half_sums[0]), sum);
            simd.fused(high, simd.load(&input.half_sums[1]), sum)
        }
    }
}

/// Multiplies what is unpacked with one token.
struct Dot<'a, S: Simd, F> {
    simd: S,
    input: &'a InputGroup,
    sum: &'a mut S::Floats,
    format: PhantomData<F>,
}

impl<S: Simd, F: Quantized> Sink<S> for Dot<'_, S, F> {
    #[inline(always)]
    fn block(&mut self, index: usize, codes: S::Codes, scales: S::Floats) {
        let input = self.simd.load_codes(&self.input.codes[index]);
        let scale = self.simd.splat(self.input.scales[index]);
        *self.sum = scaled_dot::<S, F>(self.simd, codes, scales, input, scale, *self.sum);
    }

    #[inline(always)]
    fn offsets(&mut self, offsets: S::Floats) {
        *self.sum = with_offsets(self.simd, Offsets::Blocks(offsets), self.input, *self.sum);
    }

    #[inline(always)]
    fn half_offsets(&mut self, offsets: [S::Floats; 2]) {
        *self.sum = with_offsets(self.simd, Offsets::Halves(offsets), self.input, *self.sum);
    }
}

/// Stores what is unpacked.
struct Filler<'a, S> {
    simd: S,
    panel: &'a mut Panel,
}

impl<S: Simd> Filler<'_, S> {
    #[inline(always)]
    fn stored(&self, values: S::Floats) -> [f32; LANES] {
        let mut stored = [0.0; LANES];
        self.simd.store(values, &mut stored);
        stored
    }
}

impl<S: Simd> Sink<S> for Filler<'_, S> {
    #[inline(always)]
    fn block(&mut self, index: usize, codes: S::Codes, scales: S::Floats) {
        self.simd.store_codes(codes, &mut self.panel.codes[index]);
        self.simd.store(scales, &mut self.panel.scales[index]);
    }

    #[inline(always)]
    fn offsets(&mut self, offsets: S::Floats) {
        self.panel.offsets = Offsets::Blocks(self.stored(offsets));
    }

    #[inline(always)]
    fn half_offsets(&mut self, offsets: [S::Floats; 2]) {
        self.panel.offsets = Offsets::Halves(offsets.map(|offsets| self.stored(offsets)));
    }
}
