//! Causal attention over a cache.

use crate::{KvCache, Pool};

/// The shape of an attention layer.
pub struct Attention<'a> {
    /// Heads of queries.
    pub query_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// What scores are multiplied with before the softmax.
    pub scale: f32,
    /// How many positions a token sees, itself included; all before it if `None`.
    pub window: Option<usize>,
    /// The head of the cache that each query head attends to.
    pub kv_head_of: &'a [usize],
}

/// Working memory of [`attend`].
pub struct AttentionScratch {
    scores: Vec<f32>,
}

impl AttentionScratch {
    /// Working memory for calls with pools of up to `threads` threads and caches of up to `capacity` positions, for layers
    /// of up to `query_heads` heads of up to `head_dim` values.
    pub fn new(threads: usize, query_heads: usize, head_dim: usize, capacity: usize) -> AttentionScratch {
        let _ = (threads, query_heads, head_dim);
        AttentionScratch { scores: vec![0.0; capacity] }
    }
}

/// Each query of `q`, `[tokens, query_heads, head_dim]`, attends to the positions of `cache` up to its own, the first
/// token's being `first_position`; the keys and values of these tokens must have been stored. The result goes to `out`,
/// which has the shape of `q`.
///
/// # Panics
/// When sizes do not fit together, or the scratch is too small.
pub fn attend(
    _pool: &Pool,
    shape: &Attention<'_>,
    cache: &KvCache,
    q: &[f32],
    first_position: usize,
    out: &mut [f32],
    scratch: &mut AttentionScratch,
) {
    assert_eq!(q.len(), out.len(), "the output has the shape of the queries");
    assert_eq!(shape.kv_head_of.len(), shape.query_heads, "each query head needs a head of the cache");
    let dim = shape.head_dim;
    for (i, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
        let position = first_position + i / shape.query_heads;
        let kv_head = shape.kv_head_of[i % shape.query_heads];
        let first = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let scores = &mut scratch.scores[..position + 1 - first];
        for (score, key) in scores.iter_mut().zip(first..) {
            let key = cache.key(kv_head, key);
            *score = q.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * shape.scale;
        }
        let maximum = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - maximum).exp());
        let sum: f32 = scores.iter().sum();
        out.fill(0.0);
        for (score, key) in scores.iter().zip(first..) {
            for (out, value) in out.iter_mut().zip(cache.value(kv_head, key)) {
                *out += score / sum * value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvType;

    #[test]
    fn sees_only_the_window() {
        let pool = Pool::new(1).unwrap();
        let mut cache = KvCache::new(KvType::F16, 4, 1, 2);
        cache.store(0, &[0.0; 8], &[8.0, 1.0, 4.0, 1.0, 2.0, 1.0, 100.0, 1.0]);
        let mut scratch = AttentionScratch::new(1, 1, 2, 4);
        let mut shape = Attention { query_heads: 1, head_dim: 2, scale: 1.0, window: None, kv_head_of: &[0] };
        let mut out = [0.0; 4];
        attend(&pool, &shape, &cache, &[1.0; 4], 1, &mut out, &mut scratch);
        let close = |found: &[f32], expected: &[f32]| {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
            }
        };
        close(&out, &[6.0, 1.0, 14.0 / 3.0, 1.0]);
        shape.window = Some(2);
        attend(&pool, &shape, &cache, &[1.0; 4], 1, &mut out, &mut scratch);
        close(&out, &[6.0, 1.0, 3.0, 1.0]);
    }
}
