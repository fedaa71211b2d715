//! The keys and values of the tokens seen so far, for one layer.

mod elements;
mod stored;

use serde::{Deserialize, Serialize};

use crate::simd::{CODES, LANES, Simd};
#[cfg(test)]
use crate::simd::{Portable, Task};
use elements::Elements;
pub(crate) use elements::buffer_values;
pub(crate) use stored::{Stored, View};

/// Positions that attention takes at a time. Caches hold a whole number of them.
pub(crate) const KEYS: usize = 32;

/// How a cache stores its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats; values beyond their range are stored as the largest that they can hold.
    F16,
    /// 8-bit integers, each 32 of a head with a scale, which is a 16-bit float; the same range.
    Q8_0,
}

impl KvType {
    /// Bytes that a head of so many values takes.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            KvType::F32 => 4 * head_dim,
            KvType::F16 => 2 * head_dim,
            KvType::Q8_0 => head_dim + 2 * head_dim.div_ceil(CODES),
        }
    }
}

/// Keys and values of up to `capacity` positions, each laid out `[kv_head, position, head_dim]`, heads and positions padded
/// with zeros to what the kernels take at a time.
pub struct KvCache {
    kind: KvType,
    capacity: usize,
    kv_heads: usize,
    head_dim: usize,
    keys: Elements,
    values: Elements,
}

impl KvCache {
    /// An empty cache. Its memory comes zeroed from the system, so positions never used cost none.
    pub fn new(kind: KvType, capacity: usize, kv_heads: usize, head_dim: usize) -> KvCache {
        let rows = kv_heads * capacity.next_multiple_of(KEYS);
        let elements = || Elements::new(kind, rows, head_dim.next_multiple_of(LANES));
        KvCache { kind, capacity, kv_heads, head_dim, keys: elements(), values: elements() }
    }

    /// Stores `keys` and `values`, each `[tokens, kv_heads, head_dim]`, at consecutive positions.
    ///
    /// # Panics
    /// When they differ in size, are no whole number of tokens, or do not fit the capacity.
    pub fn store(&mut self, first_position: usize, keys: &[f32], values: &[f32]) {
        let token = self.kv_heads * self.head_dim;
        assert_eq!(keys.len(), values.len(), "there must be as many keys as values");
        assert!(token > 0 && keys.len().is_multiple_of(token), "keys must be whole tokens");
        let tokens = keys.len() / token;
        assert!(first_position + tokens <= self.capacity, "no room for {tokens} tokens at {first_position}");
        for (i, (key, value)) in keys.chunks_exact(self.head_dim).zip(values.chunks_exact(self.head_dim)).enumerate() {
            let (position, head) = (first_position + i / self.kv_heads, i % self.kv_heads);
            let row = self.row(head, position);
            self.keys.store(row, key);
            self.values.store(row, value);
        }
    }

    /// How the values are stored.
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Positions that the cache has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Values in a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The distance between the heads of consecutive positions: `head_dim` rounded up to whole vectors.
    pub(crate) fn stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn row(&self, head: usize, position: usize) -> usize {
        head * self.capacity.next_multiple_of(KEYS) + position
    }

    /// The keys (or values) of `count` positions of one head from `first` on, as they are stored, or as floats if `widened`.
    /// `buffer`, of [`buffer_values`] values, is where they are widened to if need be.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // All of them vary from call to call.
    pub(crate) fn view<'a, S: Simd>(
        &'a self,
        simd: S,
        what: Part,
        head: usize,
        first: usize,
        count: usize,
        widened: bool,
        buffer: &'a mut [f32],
    ) -> View<'a> {
        let first = self.row(head, first);
        self.elements(what).view(simd, first..first + count, widened, buffer)
    }

    fn elements(&self, what: Part) -> &Elements {
        match what {
            Part::Keys => &self.keys,
            Part::Values => &self.values,
        }
    }

    /// What is stored for one head of one position, padded.
    #[cfg(test)]
    pub(crate) fn stored(&self, what: Part, head: usize, position: usize) -> Vec<f32> {
        let row = self.row(head, position);
        elements::Load(self.elements(what), row..row + 1, false).run(Portable)
    }
}

/// Which half of a cache.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Keys,
    Values,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_where_they_were_stored() {
        for kind in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let mut cache = KvCache::new(kind, 33, 2, 3);
            let keys: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let values: Vec<f32> = (0..12).map(|i| -0.5 * i as f32).collect();
            cache.store(31, &keys, &values);
            let about = |found: Vec<f32>, expected: [f32; 8]| {
                let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.02);
                assert!(close, "{kind:?}: {found:?} is not {expected:?}");
            };
            about(cache.stored(Part::Keys, 1, 31), [3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            about(cache.stored(Part::Values, 0, 32), [-3.0, -3.5, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            about(cache.stored(Part::Values, 0, 30), [0.0; 8]);
        }
    }

    #[test]
    #[should_panic(expected = "no room for 2 tokens at 32")]
    fn the_capacity_is_a_bound() {
        KvCache::new(KvType::F16, 33, 1, 8).store(32, &[0.0; 16], &[0.0; 16]);
    }
}
