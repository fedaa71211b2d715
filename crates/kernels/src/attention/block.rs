//! Rows of queries against one block of keys and values.

use std::array::from_fn;
use std::ops::Range;

use crate::KvCache;
use crate::kv_cache::{KEYS, Part};
use crate::pool::SharedValues;
use crate::simd::math::exp;
use crate::simd::{LANES, Simd, Task};

/// Keys whose scores with one query are computed together, or half as many with two.
const KEYS_AT_ONCE: usize = 8;

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
            keys: vec![0.0; KEYS * stride],
            values: vec![0.0; KEYS * stride],
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

    /// Lets `rows` attend to the first `count` keys of the block at `start`, each row to those of the range that `visible`
    /// gives for it, which must not be empty.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // All of them vary from call to call.
    pub(super) fn attend_block<S: Simd>(
        &mut self,
        simd: S,
        cache: &KvCache,
        head: usize,
        start: usize,
        count: usize,
        rows: Range<usize>,
        visible: impl Fn(usize) -> Range<usize>,
    ) {
        let padded = count.next_multiple_of(KEYS_AT_ONCE);
        let keys = cache.load(simd, Part::Keys, head, start, padded, &mut self.keys);
        let queries = &self.queries[rows.start * self.stride..rows.end * self.stride];
        score(simd, queries, keys, self.stride, &mut self.scores[rows.clone()]);
        for row in rows.clone() {
            self.weigh(simd, row, visible(row));
        }
        let values = cache.load(simd, Part::Values, head, start, count, &mut self.values);
        let gathered = &mut self.span.values[rows.start * self.stride..rows.end * self.stride];
        gather(simd, &self.scores[rows], values, self.stride, gathered);
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
        let factor = exp_one(simd, before - largest);
        self.span.weight[row] = self.span.weight[row] * factor + simd.sum(sum);
        self.span.largest[row] = largest;
        if factor != 1.0 {
            scale(simd, &mut self.span.values[row * self.stride..][..self.stride], factor);
        }
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

/// The scores of each query with each key.
#[inline(always)]
fn score<S: Simd>(simd: S, queries: &[f32], keys: &[f32], stride: usize, scores: &mut [[f32; KEYS]]) {
    let (mut queries, mut scores) = (queries, scores);
    while S::MANY_REGISTERS && scores.len() >= 4 {
        score_rows::<S, 4>(simd, queries, keys, stride, scores);
        (queries, scores) = (&queries[4 * stride..], &mut scores[4..]);
    }
    while scores.len() >= 2 {
        score_rows::<S, 2>(simd, queries, keys, stride, scores);
        (queries, scores) = (&queries[2 * stride..], &mut scores[2..]);
    }
    if let [scores] = scores {
        score_row(simd, queries, keys, stride, scores);
    }
}

/// The scores of the first `ROWS` queries, an even number, with the keys, half of [`KEYS_AT_ONCE`] at a time.
#[inline(always)]
fn score_rows<S: Simd, const ROWS: usize>(
    simd: S,
    queries: &[f32],
    keys: &[f32],
    stride: usize,
    scores: &mut [[f32; KEYS]],
) {
    const AT_ONCE: usize = KEYS_AT_ONCE / 2;
    let queries: [_; ROWS] = from_fn(|row| vectors(queries, row, stride));
    for (quad, keys) in keys.chunks_exact(AT_ONCE * stride).enumerate() {
        let keys: [_; AT_ONCE] = from_fn(|key| vectors(keys, key, stride));
        let mut sums = [[simd.splat(0.0); AT_ONCE]; ROWS];
        for i in 0..queries[0].len() {
            for key in 0..AT_ONCE {
                let values = simd.load(&keys[key][i]);
                for row in 0..ROWS {
                    sums[row][key] = simd.fused(simd.load(&queries[row][i]), values, sums[row][key]);
                }
            }
        }
        for row in (0..ROWS).step_by(2) {
            let ([a, b, c, d], [e, f, g, h]) = (sums[row], sums[row + 1]);
            let mut results = [0.0; LANES];
            simd.store(simd.sums([a, b, c, d, e, f, g, h]), &mut results);
            scores[row][AT_ONCE * quad..][..AT_ONCE].copy_from_slice(&results[..AT_ONCE]);
            scores[row + 1][AT_ONCE * quad..][..AT_ONCE].copy_from_slice(&results[AT_ONCE..]);
        }
    }
}

/// The scores of one query with the keys, [`KEYS_AT_ONCE`] at a time.
#[inline(always)]
fn score_row<S: Simd>(simd: S, query: &[f32], keys: &[f32], stride: usize, scores: &mut [f32; KEYS]) {
    let query = vectors(query, 0, stride);
    let (scores, _) = scores.as_chunks_mut::<KEYS_AT_ONCE>();
    for (keys, scores) in keys.chunks_exact(KEYS_AT_ONCE * stride).zip(scores) {
        let keys: [_; KEYS_AT_ONCE] = from_fn(|key| vectors(keys, key, stride));
        let mut sums = [simd.splat(0.0); KEYS_AT_ONCE];
        for i in 0..query.len() {
            let values = simd.load(&query[i]);
            for key in 0..KEYS_AT_ONCE {
                sums[key] = simd.fused(values, simd.load(&keys[key][i]), sums[key]);
            }
        }
        simd.store(simd.sums(sums), scores);
    }
}

/// The vectors of one of several rows of `stride` values.
#[inline(always)]
fn vectors(values: &[f32], row: usize, stride: usize) -> &[[f32; LANES]] {
    &values.as_chunks().0[row * (stride / LANES)..][..stride / LANES]
}

/// Adds the values, each times its weight, to what the rows have gathered.
#[inline(always)]
fn gather<S: Simd>(simd: S, weights: &[[f32; KEYS]], values: &[f32], stride: usize, gathered: &mut [f32]) {
    let (mut weights, mut gathered) = (weights, gathered);
    while S::MANY_REGISTERS && weights.len() >= 4 {
        gather_rows::<S, 4, 4>(simd, weights, values, stride, gathered);
        (weights, gathered) = (&weights[4..], &mut gathered[4 * stride..]);
    }
    while weights.len() >= 2 {
        gather_rows::<S, 2, 4>(simd, weights, values, stride, gathered);
        (weights, gathered) = (&weights[2..], &mut gathered[2 * stride..]);
    }
    if !weights.is_empty() {
        gather_rows::<S, 1, 8>(simd, weights, values, stride, gathered);
    }
}

/// The same for the first `ROWS` rows, `VECTORS` vectors at a time, and one at a time at the end.
#[inline(always)]
fn gather_rows<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[[f32; KEYS]],
    values: &[f32],
    stride: usize,
    gathered: &mut [f32],
) {
    let whole = stride / (VECTORS * LANES) * VECTORS * LANES;
    for first in (0..whole).step_by(VECTORS * LANES) {
        gather_vectors::<S, ROWS, VECTORS>(simd, weights, values, stride, first, gathered);
    }
    for first in (whole..stride).step_by(LANES) {
        gather_vectors::<S, ROWS, 1>(simd, weights, values, stride, first, gathered);
    }
}

/// The same for `VECTORS` vectors from value `first` on.
#[inline(always)]
fn gather_vectors<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[[f32; KEYS]],
    values: &[f32],
    stride: usize,
    first: usize,
    gathered: &mut [f32],
) {
    let weights: [_; ROWS] = from_fn(|row| &weights[row]);
    let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
    for row in 0..ROWS {
        let (gathered, _) = gathered[row * stride + first..][..VECTORS * LANES].as_chunks::<LANES>();
        for i in 0..VECTORS {
            sums[row][i] = simd.load(&gathered[i]);
        }
    }
    for key in 0..KEYS.min(values.len() / stride) {
        let (values, _) = values[key * stride + first..][..VECTORS * LANES].as_chunks::<LANES>();
        for row in 0..ROWS {
            let weight = simd.splat(weights[row][key]);
            for i in 0..VECTORS {
                sums[row][i] = simd.fused(weight, simd.load(&values[i]), sums[row][i]);
            }
        }
    }
    for row in 0..ROWS {
        let (gathered, _) = gathered[row * stride + first..][..VECTORS * LANES].as_chunks_mut::<LANES>();
        for i in 0..VECTORS {
            simd.store(sums[row][i], &mut gathered[i]);
        }
    }
}
