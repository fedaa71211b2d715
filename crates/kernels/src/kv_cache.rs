//! The keys and values of the tokens seen so far, for one layer.

use crate::simd::math::load_part;
use crate::simd::{LANES, Simd, Task, dispatch};

/// Positions that attention takes at a time. Caches hold a whole number of them.
pub(crate) const KEYS: usize = 32;

/// How a cache stores its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats; values beyond their range are stored as the largest that they can hold.
    F16,
}

/// Keys and values of up to `capacity` positions, each laid out `[kv_head, position, head_dim]`, heads and positions padded
/// with zeros to what the kernels take at a time.
pub struct KvCache {
    kind: KvType,
    capacity: usize,
    kv_heads: usize,
    head_dim: usize,
    storage: Storage,
}

enum Storage {
    F32 { keys: Vec<f32>, values: Vec<f32> },
    F16 { keys: Vec<u16>, values: Vec<u16> },
}

impl KvCache {
    /// An empty cache. Its memory comes zeroed from the system, so positions never used cost none.
    pub fn new(kind: KvType, capacity: usize, kv_heads: usize, head_dim: usize) -> KvCache {
        let size = kv_heads * capacity.next_multiple_of(KEYS) * head_dim.next_multiple_of(LANES);
        let storage = match kind {
            KvType::F32 => Storage::F32 { keys: vec![0.0; size], values: vec![0.0; size] },
            KvType::F16 => Storage::F16 { keys: vec![0; size], values: vec![0; size] },
        };
        KvCache { kind, capacity, kv_heads, head_dim, storage }
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
            let at = self.offset(head, position);
            let stride = self.stride();
            match &mut self.storage {
                Storage::F32 { keys, values } => {
                    keys[at..at + key.len()].copy_from_slice(key);
                    values[at..at + value.len()].copy_from_slice(value);
                }
                Storage::F16 { keys, values } => {
                    dispatch(Narrow { from: key, to: &mut keys[at..at + stride] });
                    dispatch(Narrow { from: value, to: &mut values[at..at + stride] });
                }
            }
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

    fn offset(&self, head: usize, position: usize) -> usize {
        (head * self.capacity.next_multiple_of(KEYS) + position) * self.stride()
    }

    /// The keys (or values) of `count` positions of one head from `first` on, `[count, stride]`. `buffer` is where they are
    /// widened to if need be.
    #[inline(always)]
    pub(crate) fn load<'a, S: Simd>(
        &'a self,
        simd: S,
        what: Part,
        head: usize,
        first: usize,
        count: usize,
        buffer: &'a mut [f32],
    ) -> &'a [f32] {
        let range = self.offset(head, first)..self.offset(head, first) + count * self.stride();
        let halves = match (&self.storage, what) {
            (Storage::F32 { keys, .. }, Part::Keys) => return &keys[range],
            (Storage::F32 { values, .. }, Part::Values) => return &values[range],
            (Storage::F16 { keys, .. }, Part::Keys) => &keys[range],
            (Storage::F16 { values, .. }, Part::Values) => &values[range],
        };
        let buffer = &mut buffer[..halves.len()];
        for (halves, floats) in halves.as_chunks::<LANES>().0.iter().zip(buffer.as_chunks_mut::<LANES>().0) {
            simd.store(simd.widen_halves(*halves), floats);
        }
        buffer
    }
}

/// Which half of a cache.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Keys,
    Values,
}

/// Rounds floats to halves, and pads them with zeros.
struct Narrow<'a> {
    from: &'a [f32],
    to: &'a mut [u16],
}

impl Task for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let largest = simd.splat(half::f16::MAX.to_f32());
        let smallest = simd.splat(half::f16::MIN.to_f32());
        for (from, to) in self.from.chunks(LANES).zip(self.to.as_chunks_mut::<LANES>().0) {
            let values = match from.first_chunk() {
                Some(vector) => simd.load(vector),
                None => load_part(simd, from),
            };
            *to = simd.narrow_to_halves(simd.max(simd.min(values, largest), smallest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    fn stored(cache: &KvCache, what: Part, head: usize, position: usize) -> Vec<f32> {
        let mut buffer = vec![f32::NAN; cache.stride()];
        cache.load(Portable, what, head, position, 1, &mut buffer)[..].to_vec()
    }

    #[test]
    fn values_come_back_where_they_were_stored() {
        for kind in [KvType::F32, KvType::F16] {
            let mut cache = KvCache::new(kind, 33, 2, 3);
            let keys: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let values: Vec<f32> = (0..12).map(|i| -0.5 * i as f32).collect();
            cache.store(31, &keys, &values);
            assert_eq!(stored(&cache, Part::Keys, 1, 31), [3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            assert_eq!(stored(&cache, Part::Values, 0, 32), [-3.0, -3.5, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            assert_eq!(stored(&cache, Part::Values, 0, 30), [0.0; 8]);
        }
    }

    #[test]
    fn halves_are_rounded_and_bounded() {
        let mut cache = KvCache::new(KvType::F16, 1, 1, 8);
        let keys = [1e9, -1e9, 1.0 + 1e-6, 65504.0, 1e-9, 0.1, f32::INFINITY, f32::NEG_INFINITY];
        cache.store(0, &keys, &[0.0; 8]);
        let expected = [65504.0, -65504.0, 1.0, 65504.0, 0.0, half::f16::from_f32(0.1).to_f32(), 65504.0, -65504.0];
        assert_eq!(stored(&cache, Part::Keys, 0, 0), expected);
    }

    #[test]
    #[should_panic(expected = "no room for 2 tokens at 32")]
    fn the_capacity_is_a_bound() {
        KvCache::new(KvType::F16, 33, 1, 8).store(32, &[0.0; 16], &[0.0; 16]);
    }
}
