//! The keys and values of one layer, for the tokens of many sequences, in blocks of consecutive positions.
//!
//! A sequence names the blocks that hold its positions in a table. Several may name the same one, as long as none writes it.

mod elements;
mod stored;

use std::io::{self, Read, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::simd::{CODES, LANES, Simd};
#[cfg(test)]
use crate::simd::{Portable, Task};
use elements::Elements;
pub(crate) use elements::buffer_values;
pub(crate) use stored::{Stored, View};

/// Positions in a block, which are those that attention takes at a time.
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

/// Blocks of the keys and values of [`KvCache::BLOCK`] positions, laid out `[kv_head, block, position, head_dim]`, heads padded
/// with zeros to what the kernels take at a time. So the positions of one head in consecutive blocks lie in one piece.
pub struct KvCache {
    kind: KvType,
    blocks: usize,
    kv_heads: usize,
    head_dim: usize,
    keys: Elements,
    values: Elements,
}

impl KvCache {
    /// Positions in a block.
    pub const BLOCK: usize = KEYS;

    /// An empty cache. Its memory comes zeroed from the system, so blocks never used cost none.
    pub fn new(kind: KvType, blocks: usize, kv_heads: usize, head_dim: usize) -> KvCache {
        let rows = kv_heads * blocks * KEYS;
        let elements = || Elements::new(kind, rows, head_dim.next_multiple_of(LANES));
        KvCache { kind, blocks, kv_heads, head_dim, keys: elements(), values: elements() }
    }

    /// Stores `keys` and `values`, each `[tokens, kv_heads, head_dim]`, at consecutive positions of the sequence whose blocks
    /// are `table`.
    ///
    /// # Panics
    /// When they differ in size, are no whole number of tokens, or the table does not reach so far or names no block.
    pub fn store(&mut self, table: &[u32], first_position: usize, keys: &[f32], values: &[f32]) {
        let token = self.kv_heads * self.head_dim;
        assert_eq!(keys.len(), values.len(), "there must be as many keys as values");
        assert!(token > 0 && keys.len().is_multiple_of(token), "keys must be whole tokens");
        let tokens = keys.len() / token;
        assert!(first_position + tokens <= table.len() * KEYS, "no room for {tokens} tokens at {first_position}");
        for (i, (key, value)) in keys.chunks_exact(self.head_dim).zip(values.chunks_exact(self.head_dim)).enumerate() {
            let (position, head) = (first_position + i / self.kv_heads, i % self.kv_heads);
            let row = self.first_row(table[position / KEYS], head) + position % KEYS;
            self.keys.store(row, key);
            self.values.store(row, value);
        }
    }

    /// Copies what block `from` holds to block `to`.
    ///
    /// # Panics
    /// When the cache has no such block.
    pub fn copy(&mut self, from: u32, to: u32) {
        for head in 0..self.kv_heads {
            let (from, to) = (self.first_row(from, head), self.first_row(to, head));
            self.keys.copy(from..from + KEYS, to);
            self.values.copy(from..from + KEYS, to);
        }
    }

    /// Writes what the first `blocks` blocks hold, in this machine's order of bytes.
    ///
    /// # Errors
    /// When `out` cannot take it.
    ///
    /// # Panics
    /// When the cache has fewer blocks.
    pub fn write_blocks(&self, blocks: usize, out: &mut dyn Write) -> io::Result<()> {
        for head in 0..self.kv_heads {
            let rows = self.rows(blocks, head);
            for elements in [&self.keys, &self.values] {
                elements.bytes(rows.clone()).into_iter().try_for_each(|bytes| out.write_all(bytes))?;
            }
        }
        Ok(())
    }

    /// Reads what [`KvCache::write_blocks`] has written of a cache of the same shape. Any bytes are keys and values.
    ///
    /// # Errors
    /// When `from` has not enough; then blocks may hold anything.
    ///
    /// # Panics
    /// When the cache has fewer blocks.
    pub fn read_blocks(&mut self, blocks: usize, from: &mut dyn Read) -> io::Result<()> {
        for head in 0..self.kv_heads {
            let rows = self.rows(blocks, head);
            for elements in [&mut self.keys, &mut self.values] {
                elements.bytes_mut(rows.clone()).into_iter().try_for_each(|bytes| from.read_exact(bytes))?;
            }
        }
        Ok(())
    }

    /// The rows of a head in the first blocks.
    fn rows(&self, blocks: usize, head: usize) -> Range<usize> {
        assert!(blocks <= self.blocks, "the cache has {} blocks, not {blocks}", self.blocks);
        let first = head * self.blocks * KEYS;
        first..first + blocks * KEYS
    }

    /// How the values are stored.
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Blocks of the cache.
    pub fn blocks(&self) -> usize {
        self.blocks
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

    /// The row of a head at the first position of a block.
    fn first_row(&self, block: u32, head: usize) -> usize {
        let block = block as usize;
        assert!(block < self.blocks, "the cache has {} blocks, none of them is block {block}", self.blocks);
        (head * self.blocks + block) * KEYS
    }

    /// The keys (or values) of one head at the first `count` positions of a block, as they are stored, or as floats if
    /// `widened`. `buffer`, of [`buffer_values`] values, is where they are widened to if need be.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // All of them vary from call to call.
    pub(crate) fn view<'a, S: Simd>(
        &'a self,
        simd: S,
        what: Part,
        head: usize,
        block: u32,
        count: usize,
        widened: bool,
        buffer: &'a mut [f32],
    ) -> View<'a> {
        let first = self.first_row(block, head);
        self.elements(what).view(simd, first..first + count, widened, buffer)
    }

    /// Asks the memory for the first keys (or values) of one head in a block.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(&self, simd: S, what: Part, head: usize, block: u32) {
        let first = self.first_row(block, head);
        self.elements(what).prefetch(simd, first..first + KEYS);
    }

    fn elements(&self, what: Part) -> &Elements {
        match what {
            Part::Keys => &self.keys,
            Part::Values => &self.values,
        }
    }

    /// What is stored for one head of one position, padded.
    #[cfg(test)]
    pub(crate) fn stored(&self, what: Part, head: usize, table: &[u32], position: usize) -> Vec<f32> {
        let row = self.first_row(table[position / KEYS], head) + position % KEYS;
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
            let mut cache = KvCache::new(kind, 4, 2, 3);
            let keys: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let values: Vec<f32> = (0..12).map(|i| -0.5 * i as f32).collect();
            let table = [2, 0];
            cache.store(&table, 31, &keys, &values);
            let about = |found: Vec<f32>, expected: [f32; 8]| {
                let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.02);
                assert!(close, "{kind:?}: {found:?} is not {expected:?}");
            };
            let check = |cache: &KvCache, table: &[u32]| {
                about(cache.stored(Part::Keys, 1, table, 31), [3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
                about(cache.stored(Part::Values, 0, table, 32), [-3.0, -3.5, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
                about(cache.stored(Part::Values, 0, table, 30), [0.0; 8]);
            };
            check(&cache, &table);
            // A copy is a block of its own.
            cache.copy(2, 3);
            cache.copy(0, 1);
            check(&cache, &[3, 1]);
            cache.store(&table, 31, &values, &keys);
            check(&cache, &[3, 1]);
        }
    }

    #[test]
    fn blocks_are_written_and_read() {
        for kind in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let values: Vec<f32> = (0..2 * 40 * 64).map(|i| (i % 37) as f32 - 5.5).collect();
            let mut cache = KvCache::new(kind, 4, 2, 40);
            cache.store(&[1, 0], 0, &values, &values);
            let mut bytes = Vec::new();
            cache.write_blocks(2, &mut bytes).unwrap();
            // Another number of blocks makes no difference.
            let mut other = KvCache::new(kind, 3, 2, 40);
            other.read_blocks(2, &mut &bytes[..]).unwrap();
            for position in 0..64 {
                for (part, head) in [(Part::Keys, 0), (Part::Values, 1)] {
                    assert_eq!(
                        cache.stored(part, head, &[1, 0], position),
                        other.stored(part, head, &[1, 0], position),
                        "{kind:?} {position}"
                    );
                }
            }
            assert!(other.read_blocks(2, &mut &bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    #[should_panic(expected = "no room for 2 tokens at 31")]
    fn a_table_is_a_bound() {
        KvCache::new(KvType::F16, 2, 1, 8).store(&[1], 31, &[0.0; 16], &[0.0; 16]);
    }

    #[test]
    #[should_panic(expected = "the cache has 2 blocks, none of them is block 2")]
    fn blocks_beyond_the_cache_are_refused() {
        KvCache::new(KvType::F16, 2, 2, 8).copy(2, 0);
    }
}
