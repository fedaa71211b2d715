//! The sizes from which on another way of doing a collective is faster.

/// Thresholds that all ranks of a group share, as plans depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Two ranks reduce buffers of at most so many bytes by sending each other the whole. Larger ones are shared out.
    pub pair_bytes_max: usize,
    /// More ranks reduce buffers of at most so many bytes by sending everyone the whole, counted as what a rank then
    /// receives from all others together. Larger ones are shared out: each rank reduces a part, and then the parts are
    /// gathered.
    pub one_shot_bytes_max: usize,
    /// Buffers of at least so many bytes are reduced along a chain of ranks where the cables form one.
    pub chain_bytes_min: usize,
    /// The bytes that travel in one message along a chain or down a tree.
    pub chunk_bytes: usize,
    /// The bytes of each part that is reduced at a time, which bounds the memory that large buffers need.
    pub part_bytes: usize,
    /// Where all ranks are connected, broadcasts of more bytes go from rank to rank instead of from the root to all.
    pub star_bytes_max: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            pair_bytes_max: usize::MAX,
            one_shot_bytes_max: 64 << 10,
            chain_bytes_min: 64 << 10,
            chunk_bytes: 64 << 10,
            part_bytes: 256 << 10,
            star_bytes_max: 256 << 10,
        }
    }
}
