//! The keys and values of the tokens seen so far, for one layer.

/// How a cache stores its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats; values beyond their range are stored as the largest that they can hold.
    F16,
}

/// Keys and values of up to `capacity` positions, each laid out `[kv_head, position, head_dim]`.
pub struct KvCache {
    kind: KvType,
    capacity: usize,
    kv_heads: usize,
    head_dim: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KvCache {
    /// An empty cache. Its memory comes zeroed from the system, so positions never used cost none.
    pub fn new(kind: KvType, capacity: usize, kv_heads: usize, head_dim: usize) -> KvCache {
        let size = capacity * kv_heads * head_dim;
        KvCache { kind, capacity, kv_heads, head_dim, keys: vec![0.0; size], values: vec![0.0; size] }
    }

    /// Stores `keys` and `values`, each `[tokens, kv_heads, head_dim]`, at consecutive positions.
    ///
    /// # Panics
    /// When they differ in size, are no whole number of tokens, or do not fit the capacity.
    pub fn store(&mut self, first_position: usize, keys: &[f32], values: &[f32]) {
        let token = self.kv_heads * self.head_dim;
        assert_eq!(keys.len(), values.len(), "there must be as many keys as values");
        assert!(token == 0 || keys.len().is_multiple_of(token), "keys must be whole tokens");
        let tokens = keys.len().checked_div(token).unwrap_or(0);
        assert!(first_position + tokens <= self.capacity, "no room for {tokens} tokens at {first_position}");
        for t in 0..tokens {
            for head in 0..self.kv_heads {
                let from = (t * self.kv_heads + head) * self.head_dim;
                let to = (head * self.capacity + first_position + t) * self.head_dim;
                for i in 0..self.head_dim {
                    self.keys[to + i] = self.rounded(keys[from + i]);
                    self.values[to + i] = self.rounded(values[from + i]);
                }
            }
        }
    }

    fn rounded(&self, value: f32) -> f32 {
        match self.kind {
            KvType::F32 => value,
            KvType::F16 => half::f16::from_f32(value.clamp(-65504.0, 65504.0)).to_f32(),
        }
    }

    /// Positions that the cache has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn key(&self, head: usize, position: usize) -> &[f32] {
        &self.keys[(head * self.capacity + position) * self.head_dim..][..self.head_dim]
    }

    pub(crate) fn value(&self, head: usize, position: usize) -> &[f32] {
        &self.values[(head * self.capacity + position) * self.head_dim..][..self.head_dim]
    }
}
