//! Products of a few queries with the keys of a block, and of their weights with its values.
//!
//! How many rows and keys are taken together changes which numbers stay in registers, but not the order in which any sum is
//! formed: each score is summed up in eight lanes over the vectors of a head, and each output over the keys.

use std::array::from_fn;

use crate::kv_cache::{KEYS, Stored};
use crate::simd::{LANES, Simd};

/// Keys whose scores with one query are computed together. Blocks are padded to whole numbers of them.
pub(super) const KEYS_AT_ONCE: usize = 8;

/// The scores of each query of `stride` values with each of `count` keys.
#[inline(always)]
pub(super) fn score<S: Simd, K: Stored>(
    simd: S,
    queries: &[f32],
    keys: K,
    count: usize,
    stride: usize,
    scores: &mut [[f32; KEYS]],
) {
    let (mut queries, mut scores) = (queries, scores);
    while scores.len() >= 4 && S::MANY_REGISTERS {
        score_rows::<S, K, 4, 4>(simd, queries, keys, count, stride, scores);
        (queries, scores) = (&queries[4 * stride..], &mut scores[4..]);
    }
    if scores.len() == 3 && S::MANY_REGISTERS {
        return score_rows::<S, K, 3, 8>(simd, queries, keys, count, stride, scores);
    }
    while scores.len() >= 2 {
        score_rows::<S, K, 2, 4>(simd, queries, keys, count, stride, scores);
        (queries, scores) = (&queries[2 * stride..], &mut scores[2..]);
    }
    if !scores.is_empty() {
        score_rows::<S, K, 1, 8>(simd, queries, keys, count, stride, scores);
    }
}

/// The scores of the first `ROWS` queries, `TOGETHER` keys at a time: 8, or 4 for an even number of queries.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
fn score_rows<S: Simd, K: Stored, const ROWS: usize, const TOGETHER: usize>(
    simd: S,
    queries: &[f32],
    keys: K,
    count: usize,
    stride: usize,
    scores: &mut [[f32; KEYS]],
) {
    let queries: [_; ROWS] = from_fn(|row| &queries[row * stride..][..stride].as_chunks::<LANES>().0[..stride / LANES]);
    for first in (0..count).step_by(TOGETHER) {
        let keys: [_; TOGETHER] = from_fn(|key| keys.row(first + key));
        let mut sums = [[simd.splat(0.0); TOGETHER]; ROWS];
        for key in keys {
            K::prefetch(simd, key);
        }
        for i in 0..stride / LANES {
            for key in 0..TOGETHER {
                let values = K::vector(simd, keys[key], i);
                for row in 0..ROWS {
                    sums[row][key] = simd.fused(simd.load(&queries[row][i]), values, sums[row][key]);
                }
            }
        }
        if TOGETHER == LANES {
            for row in 0..ROWS {
                let (scores, _) = scores[row].as_chunks_mut();
                simd.store(simd.sums(from_fn(|key| sums[row][key])), &mut scores[first / LANES]);
            }
        } else {
            for row in (0..ROWS).step_by(2) {
                let mut results = [0.0; LANES];
                simd.store(simd.sums(from_fn(|i| sums[row + i / TOGETHER][i % TOGETHER])), &mut results);
                scores[row][first..][..TOGETHER].copy_from_slice(&results[..TOGETHER]);
                scores[row + 1][first..][..TOGETHER].copy_from_slice(&results[TOGETHER..]);
            }
        }
    }
}

/// Adds `count` values, each times its weight, to what each row has gathered.
#[inline(always)]
pub(super) fn gather<S: Simd, K: Stored>(
    simd: S,
    weights: &[[f32; KEYS]],
    values: K,
    count: usize,
    stride: usize,
    gathered: &mut [f32],
) {
    let (mut weights, mut gathered) = (weights, gathered);
    while weights.len() >= 4 && S::MANY_REGISTERS {
        gather_rows::<S, K, 4, 4>(simd, weights, values, count, stride, gathered);
        (weights, gathered) = (&weights[4..], &mut gathered[4 * stride..]);
    }
    if weights.len() == 3 && S::MANY_REGISTERS {
        return gather_rows::<S, K, 3, 8>(simd, weights, values, count, stride, gathered);
    }
    while weights.len() >= 2 {
        gather_rows::<S, K, 2, 4>(simd, weights, values, count, stride, gathered);
        (weights, gathered) = (&weights[2..], &mut gathered[2 * stride..]);
    }
    if !weights.is_empty() {
        gather_rows::<S, K, 1, 8>(simd, weights, values, count, stride, gathered);
    }
}

/// The same for the first `ROWS` rows, `VECTORS` vectors at a time, and one at a time at the end.
#[inline(always)]
fn gather_rows<S: Simd, K: Stored, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[[f32; KEYS]],
    values: K,
    count: usize,
    stride: usize,
    gathered: &mut [f32],
) {
    let width = stride / LANES;
    let whole = width / VECTORS * VECTORS;
    for first in (0..whole).step_by(VECTORS) {
        gather_vectors::<S, K, ROWS, VECTORS>(simd, weights, values, count, width, first, gathered);
    }
    for first in whole..width {
        gather_vectors::<S, K, ROWS, 1>(simd, weights, values, count, width, first, gathered);
    }
}

/// The same for `VECTORS` vectors from vector `first` on of rows of `width`.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // As above.
fn gather_vectors<S: Simd, K: Stored, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[[f32; KEYS]],
    values: K,
    count: usize,
    width: usize,
    first: usize,
    gathered: &mut [f32],
) {
    let weights: [_; ROWS] = from_fn(|row| &weights[row]);
    let (gathered, _) = gathered.as_chunks_mut::<LANES>();
    let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
    for row in 0..ROWS {
        for i in 0..VECTORS {
            sums[row][i] = simd.load(&gathered[row * width + first + i]);
        }
    }
    for key in 0..count.min(KEYS) {
        let values = values.row(key);
        if first == 0 {
            K::prefetch(simd, values);
        }
        for i in 0..VECTORS {
            let values = K::vector(simd, values, first + i);
            for row in 0..ROWS {
                sums[row][i] = simd.fused(simd.splat(weights[row][key]), values, sums[row][i]);
            }
        }
    }
    for row in 0..ROWS {
        for i in 0..VECTORS {
            simd.store(sums[row][i], &mut gathered[row * width + first + i]);
        }
    }
}
