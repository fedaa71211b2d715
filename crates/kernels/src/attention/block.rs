//! Rows of queries against one block of keys and values.

use std::ops::Range;

use super::products::{KEYS_AT_ONCE, gather, score};
use crate::KvCache;
use crate::kv_cache::{KEYS, Part, View, buffer_values};
use crate::pool::SharedValues;
use crate::simd::math::exp;
use crate::simd::{LANES, Simd, Task};

/// Queries up to which keys and values are widened anew for each few of them, which is what the queries of one token are.
/// For more, they are widened once, to memory.
const FEW_ROWS: usize = 8;

/// Some queries that attend to the same head of a cache, and what they have gathered so far.
pub(super) struct Rows {
    count: usize,
    /// Values between rows.
    stride: usize,
    /// Queries times scale, `[count, stride]`.
    queries: Vec<f32>,
    scores: Vec<[f32; KEYS]>,
    /// What the current span gathered.
    span: Gathered,
    /// What all spans before it gathered.
    total: Gathered,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The first `count` keys and values of a block, of one head.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) head: usize,
    pub(super) block: u32,
    pub(super) count: usize,
}

/// A softmax under way, for each row: values weighted with exponentials of scores, relative to the largest score.
struct Gathered {
    largest: Vec<f32>,
    /// The sum of the exponentials.
    weight: Vec<f32>,
    /// `[rows, stride]`
    values: Vec<f32>,
}

impl Gathered {
    fn new(rows: usize, stride: usize) -> Gathered {
        Gathered { largest: vec![0.0; rows], weight: vec![0.0; rows], values: vec![0.0; rows * stride] }
    }

    fn clear(&mut self, rows: usize, stride: usize) {
        self.largest[..rows].fill(f32::NEG_INFINITY);
        self.weight[..rows].fill(0.0);
        self.values[..rows * stride].fill(0.0);
    }
}

impl Rows {
    /// Room for `rows` rows of heads padded to `stride` values.
    pub(super) fn new(rows: usize, stride: usize) -> Rows {
        Rows {
            count: 0,
            stride,
            queries: vec![0.0; rows * stride],
            scores: vec![[0.0; KEYS]; rows],
            span: Gathered::new(rows, stride),
            total: Gathered::new(rows, stride),
            keys: vec![0.0; buffer_values(KEYS, stride)],
            values: vec![0.0; buffer_values(KEYS, stride)],
        }
    }

    /// Starts anew with `count` rows.
    pub(super) fn begin(&mut self, count: usize, stride: usize) {
        (self.count, self.stride) = (count, stride);
        self.total.clear(count, stride);
    }

    /// Sets the query of a row.
    pub(super) fn set_query(&mut self, row: usize, query: &[f32], scale: f32) {
        let place = &mut self.queries[row * self.stride..][..self.stride];
        for (place, value) in place.iter_mut().zip(query) {
            *place = value * scale;
        }
        place[query.len()..].fill(0.0);
    }

    pub(super) fn begin_span(&mut self) {
        self.span.clear(self.count, self.stride);
    }

    /// Lets `rows` attend to some keys, each row to those of the range that `visible` gives for it, which must not be empty.
    /// The block `next` comes after this one.
    #[inline(always)]
    pub(super) fn attend_block<S: Simd>(
        &mut self,
        simd: S,
        keys: Keys<'_>,
        next: Option<u32>,
        rows: Range<usize>,
        visible: impl Fn(usize) -> Range<usize>,
    ) {
        let Keys { cache, head, block, count } = keys;
        // Rows ask for those behind them as they are read, which helps the next block only if it lies there.
        let next = next.filter(|next| *next != block + 1);
        let padded = count.next_multiple_of(KEYS_AT_ONCE);
        let widened = rows.len() > FEW_ROWS;
        let queries = &self.queries[rows.start * self.stride..rows.end * self.stride];
        let scores = &mut self.scores[rows.clone()];
        match cache.view(simd, Part::Keys, head, block, padded, widened, &mut self.keys) {
            View::Floats(keys) => score(simd, queries, keys, padded, self.stride, scores),
            View::Halves(keys) => score(simd, queries, keys, padded, self.stride, scores),
            View::Codes(keys) => score(simd, queries, keys, padded, self.stride, scores),
        }
        if let Some(next) = next {
            cache.prefetch(simd, Part::Keys, head, next);
        }
        for row in rows.clone() {
            self.weigh(simd, row, visible(row));
        }
        let gathered = &mut self.span.values[rows.start * self.stride..rows.end * self.stride];
        let weights = &self.scores[rows];
        match cache.view(simd, Part::Values, head, block, count, widened, &mut self.values) {
            View::Floats(values) => gather(simd, weights, values, count, self.stride, gathered),
            View::Halves(values) => gather(simd, weights, values, count, self.stride, gathered),
            View::Codes(values) => gather(simd, weights, values, count, self.stride, gathered),
        }
        if let Some(next) = next {
            cache.prefetch(simd, Part::Values, head, next);
        }
    }

    /// Turns the scores of a row into weights, and scales what it gathered before down if need be.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, simd: S, row: usize, visible: Range<usize>) {
        let scores = &mut self.scores[row];
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        let (vectors, _) = scores.as_chunks_mut::<LANES>();
        let mut largest = simd.splat(self.span.largest[row]);
        for vector in &*vectors {
            largest = simd.max(largest, simd.load(vector));
        }
        let largest = simd.largest(largest);
        let mut sum = simd.splat(0.0);
        for vector in vectors {
            let weights = exp(simd, simd.sub(simd.load(vector), simd.splat(largest)));
            sum = simd.add(sum, weights);
            simd.store(weights, vector);
        }
        let before = self.span.largest[row];
        if largest != before {
            let factor = exp_one(simd, before - largest);
            self.span.weight[row] *= factor;
            self.span.largest[row] = largest;
            scale(simd, &mut self.span.values[row * self.stride..][..self.stride], factor);
        }
        self.span.weight[row] += simd.sum(sum);
    }

    /// Merges what the span gathered into the total.
    #[inline(always)]
    pub(super) fn end_span<S: Simd>(&mut self, simd: S) {
        for row in 0..self.count {
            let values = &self.span.values[row * self.stride..][..self.stride];
            merge(simd, &mut self.total, row, self.span.largest[row], self.span.weight[row], values);
        }
    }

    /// Writes the results of all rows to the places that `place` gives.
    pub(super) fn write(&self, place: impl Fn(usize) -> usize, length: usize, out: SharedValues<'_>) {
        for row in 0..self.count {
            let values = &self.total.values[row * self.stride..][..length];
            for (i, value) in values.iter().enumerate() {
                out.set(place(row) + i, value / self.total.weight[row]);
            }
        }
    }

    /// Writes what the last span gathered: for each row its largest score, its weight, and its values.
    pub(super) fn write_partial(&self, place: impl Fn(usize) -> usize, out: SharedValues<'_>) {
        for row in 0..self.count {
            let place = place(row);
            out.set(place, self.span.largest[row]);
            out.set(place + 1, self.span.weight[row]);
            for (i, value) in self.span.values[row * self.stride..][..self.stride].iter().enumerate() {
                out.set(place + 2 + i, *value);
            }
        }
    }
}

/// Merges what [`Rows::write_partial`] wrote for one row of each span into the total of row 0.
pub(super) struct Merge<'a, I> {
    pub(super) rows: &'a mut Rows,
    pub(super) stride: usize,
    pub(super) spans: I,
}

impl<'a, I: Iterator<Item = &'a [f32]>> Task for Merge<'_, I> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.rows.begin(1, self.stride);
        for span in self.spans {
            merge(simd, &mut self.rows.total, 0, span[0], span[1], &span[2..]);
        }
    }
}

/// Adds what a span gathered to the total of a row.
#[inline(always)]
fn merge<S: Simd>(simd: S, total: &mut Gathered, row: usize, largest: f32, weight: f32, values: &[f32]) {
    // A span that the row does not see.
    if weight == 0.0 {
        return;
    }
    let all = if largest > total.largest[row] { largest } else { total.largest[row] };
    let old = exp_one(simd, total.largest[row] - all);
    let new = exp_one(simd, largest - all);
    total.largest[row] = all;
    total.weight[row] = total.weight[row] * old + weight * new;
    let stride = values.len();
    let totals = total.values[row * stride..][..stride].as_chunks_mut::<LANES>().0;
    for (total, values) in totals.iter_mut().zip(values.as_chunks::<LANES>().0) {
        let scaled = simd.mul(simd.load(total), simd.splat(old));
        simd.store(simd.fused(simd.load(values), simd.splat(new), scaled), total);
    }
}

#[inline(always)]
fn exp_one<S: Simd>(simd: S, x: f32) -> f32 {
    let mut result = [0.0; LANES];
    simd.store(exp(simd, simd.splat(x)), &mut result);
    result[0]
}

#[inline(always)]
fn scale<S: Simd>(simd: S, values: &mut [f32], factor: f32) {
    for vector in values.as_chunks_mut::<LANES>().0 {
        simd.store(simd.mul(simd.load(vector), simd.splat(factor)), vector);
    }
}
