//! What rows of inputs are made from, on their way into a product.

use super::ROWS_AT_ONCE;
use crate::elementwise::activation;
use crate::norm::factor_of_row;
use crate::simd::{CODES, LANES, Simd, Task, dispatch};
use crate::{Gate, Pool};

/// Sums that a thread takes at a time: fewer are not worth waking it.
const SUMS_AT_ONCE: usize = 1 << 14;

/// Rows of values, with what is left to be done to them before a product takes them. So nothing has to be written to
/// memory in between.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// The values as they are, `[tokens, columns]`.
    Plain {
        /// The values.
        x: &'a [f32],
        /// Values in a row.
        columns: usize,
    },
    /// Root-mean-square normalization of each row, as [`crate::rms_norm_in_place`] computes it.
    Normed {
        /// The values, `[tokens, weight.len()]`.
        x: &'a [f32],
        /// One for each column.
        weight: &'a [f32],
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `act(gate) * up`, value by value.
    Gated {
        /// What goes through the activation, `[tokens, columns]`.
        gate: &'a [f32],
        /// What that is multiplied with, `[tokens, columns]`.
        up: &'a [f32],
        /// The activation.
        kind: Gate,
        /// Values in a row.
        columns: usize,
    },
}

impl Rows<'_> {
    /// Values in a row.
    pub fn columns(&self) -> usize {
        match *self {
            Rows::Plain { columns, .. } | Rows::Gated { columns, .. } => columns,
            Rows::Normed { weight, .. } => weight.len(),
        }
    }

    /// The number of rows.
    ///
    /// # Panics
    /// When the values are no whole number of rows, or there is another number of them for the gate.
    pub fn count(&self) -> usize {
        let columns = self.columns();
        let (Rows::Plain { x, .. } | Rows::Normed { x, .. } | Rows::Gated { gate: x, .. }) = *self;
        assert!(columns > 0 && x.len().is_multiple_of(columns), "{} values are no rows of {columns}", x.len());
        if let Rows::Gated { gate, up, .. } = self {
            assert_eq!(gate.len(), up.len(), "both must have the same size");
        }
        x.len() / columns
    }

    /// Writes each row to `out` from column `first` of its row of `stride` columns on. What lies around it stays.
    ///
    /// # Panics
    /// When the rows do not fit.
    pub fn write(&self, pool: &Pool, out: &mut [f32], first: usize, stride: usize) {
        let fits = first + self.columns() <= stride && out.len() == self.count() * stride;
        assert!(fits, "rows of {} columns do not fit from column {first} of {stride} on", self.columns());
        pool.for_each_piece(out, ROWS_AT_ONCE * stride, |piece, out| {
            dispatch(Write::<false> { rows: self, first_row: piece * ROWS_AT_ONCE, out, first, stride });
        });
    }

    /// Adds each row to that of `sums`, `[tokens, columns]`.
    ///
    /// # Panics
    /// When there are not as many rows in both.
    pub fn add_to(&self, pool: &Pool, sums: &mut [f32]) {
        let stride = self.columns();
        assert_eq!(sums.len(), self.count() * stride, "both must have the same size");
        let at_once = SUMS_AT_ONCE.div_ceil(stride);
        pool.for_each_piece(sums, at_once * stride, |piece, out| {
            dispatch(Write::<true> { rows: self, first_row: piece * at_once, out, first: 0, stride });
        });
    }
}

/// Writes rows as floats, or adds them to what is there.
struct Write<'a, const ADD: bool> {
    rows: &'a Rows<'a>,
    first_row: usize,
    out: &'a mut [f32],
    first: usize,
    stride: usize,
}

impl<const ADD: bool> Task for Write<'_, ADD> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Write { rows, first_row, out, first, stride } = self;
        let (count, columns) = (out.len() / stride, rows.columns());
        visit(simd, rows, first_row, count, &mut ToFloats::<S, ADD> { simd, out, first, stride, columns });
    }
}

struct ToFloats<'a, S, const ADD: bool> {
    simd: S,
    out: &'a mut [f32],
    first: usize,
    stride: usize,
    columns: usize,
}

impl<S: Simd, const ADD: bool> Visitor<S> for ToFloats<'_, S, ADD> {
    #[inline(always)]
    fn block(&mut self, row: usize, block: usize, values: [S::Floats; 4]) {
        let length = CODES.min(self.columns - block * CODES);
        let out = &mut self.out[row * self.stride + self.first + block * CODES..][..length];
        let mut part = [0.0; CODES];
        let whole = length == CODES;
        if ADD && !whole {
            part[..length].copy_from_slice(out);
        }
        let to = if whole { &mut *out } else { &mut part[..] };
        let (quarters, _) = to.as_chunks_mut::<LANES>();
        for i in 0..4 {
            let value = if ADD { self.simd.add(self.simd.load(&quarters[i]), values[i]) } else { values[i] };
            self.simd.store(value, &mut quarters[i]);
        }
        if !whole {
            out.copy_from_slice(&part[..length]);
        }
    }
}

/// Takes the values of rows one block after the other.
pub(super) trait Visitor<S: Simd> {
    /// Takes 32 values, of which those beyond the end of the row are zero.
    fn block(&mut self, row: usize, block: usize, values: [S::Floats; 4]);
}

/// Hands all blocks of `count` rows, from `first` on, to a visitor, which counts them from 0.
#[inline(always)]
pub(super) fn visit<S: Simd>(simd: S, rows: &Rows<'_>, first: usize, count: usize, visitor: &mut impl Visitor<S>) {
    let columns = rows.columns();
    let blocks = columns.div_ceil(CODES);
    for row in 0..count {
        let index = first + row;
        match *rows {
            Rows::Plain { x, .. } => {
                let x = of_row(x, index, columns);
                for block in 0..blocks {
                    visitor.block(row, block, load_block(simd, x, block));
                }
            }
            Rows::Normed { x, weight, epsilon } => {
                let x = of_row(x, index, columns);
                let factor = factor_of_row(simd, x, epsilon);
                for block in 0..blocks {
                    let (mut values, weights) = (load_block(simd, x, block), load_block(simd, weight, block));
                    for i in 0..4 {
                        values[i] = simd.mul(simd.mul(values[i], factor), weights[i]);
                    }
                    visitor.block(row, block, values);
                }
            }
            Rows::Gated { gate, up, kind, .. } => {
                let (gate, up) = (of_row(gate, index, columns), of_row(up, index, columns));
                for block in 0..blocks {
                    let (mut values, ups) = (load_block(simd, gate, block), load_block(simd, up, block));
                    for i in 0..4 {
                        values[i] = simd.mul(activation(simd, kind, values[i]), ups[i]);
                    }
                    visitor.block(row, block, values);
                }
            }
        }
    }
}

#[inline(always)]
fn of_row(values: &[f32], row: usize, columns: usize) -> &[f32] {
    &values[row * columns..][..columns]
}

/// 32 values of a row, zeros behind its end.
#[inline(always)]
fn load_block<S: Simd>(simd: S, row: &[f32], block: usize) -> [S::Floats; 4] {
    let rest = &row[block * CODES..];
    let mut padded = [0.0; CODES];
    let values = match rest.first_chunk::<CODES>() {
        Some(values) => values,
        None => {
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        }
    };
    let (quarters, _) = values.as_chunks::<LANES>();
    [simd.load(&quarters[0]), simd.load(&quarters[1]), simd.load(&quarters[2]), simd.load(&quarters[3])]
}
