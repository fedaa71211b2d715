//! Rows of a cache as attention reads them.

use crate::simd::{CODES, LANES, Simd};

/// How far ahead of their use rows are asked for. Keys and values are read in turns, a few kilobytes at a time, so that
/// processors do not see by themselves how either goes on. Half as far and twice as far are slower.
pub(super) const PREFETCH_BYTES: usize = 2048;

/// Rows of vectors that are widened to floats as they are read. All kinds of rows give the same floats for the same cache.
pub(crate) trait Stored: Copy {
    /// One row.
    type Row: Copy;

    fn row(self, row: usize) -> Self::Row;
    /// A vector of a row.
    fn vector<S: Simd>(simd: S, row: Self::Row, index: usize) -> S::Floats;
    /// Asks the memory for what lies [`PREFETCH_BYTES`] behind this row.
    fn prefetch<S: Simd>(simd: S, row: Self::Row);
}

/// Some rows of a cache, as they are stored or widened already.
pub(crate) enum View<'a> {
    Floats(Floats<'a>),
    Halves(Halves<'a>),
    Codes(Codes<'a>),
}

/// Rows of floats.
#[derive(Clone, Copy)]
pub(crate) struct Floats<'a> {
    pub(super) vectors: &'a [[f32; LANES]],
    /// Vectors in a row.
    pub(super) width: usize,
}

impl<'a> Stored for Floats<'a> {
    type Row = &'a [[f32; LANES]];

    #[inline(always)]
    fn row(self, row: usize) -> Self::Row {
        &self.vectors[row * self.width..][..self.width]
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, row: Self::Row, index: usize) -> S::Floats {
        simd.load(&row[index])
    }

    #[inline(always)]
    fn prefetch<S: Simd>(simd: S, row: Self::Row) {
        simd.prefetch(bytemuck::cast_slice(row), PREFETCH_BYTES);
    }
}

/// Rows of 16-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct Halves<'a> {
    pub(super) vectors: &'a [[u16; LANES]],
    /// Vectors in a row.
    pub(super) width: usize,
}

impl<'a> Stored for Halves<'a> {
    type Row = &'a [[u16; LANES]];

    #[inline(always)]
    fn row(self, row: usize) -> Self::Row {
        &self.vectors[row * self.width..][..self.width]
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, row: Self::Row, index: usize) -> S::Floats {
        simd.widen_halves(row[index])
    }

    #[inline(always)]
    fn prefetch<S: Simd>(simd: S, row: Self::Row) {
        simd.prefetch(bytemuck::cast_slice(row), PREFETCH_BYTES);
    }
}

/// Rows of 8-bit codes, with the scales of their blocks.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    pub(super) vectors: &'a [[u8; LANES]],
    pub(super) scales: &'a [f32],
    /// Vectors in a row.
    pub(super) width: usize,
}

impl<'a> Stored for Codes<'a> {
    type Row = (&'a [[u8; LANES]], &'a [f32]);

    #[inline(always)]
    fn row(self, row: usize) -> Self::Row {
        let blocks = self.width.div_ceil(CODES / LANES);
        (&self.vectors[row * self.width..][..self.width], &self.scales[row * blocks..][..blocks])
    }

    #[inline(always)]
    fn vector<S: Simd>(simd: S, (codes, scales): Self::Row, index: usize) -> S::Floats {
        simd.mul(simd.widen_bytes(&codes[index]), simd.splat(scales[index / (CODES / LANES)]))
    }

    #[inline(always)]
    fn prefetch<S: Simd>(simd: S, (codes, _): Self::Row) {
        simd.prefetch(codes.as_flattened(), PREFETCH_BYTES);
    }
}
