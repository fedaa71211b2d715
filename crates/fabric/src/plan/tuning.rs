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
    /// The bytes that travel in one message along a chain or down a tree; more where that would make too many messages.
    pub chunk_bytes: usize,
    /// The bytes of each part that is reduced at a time, which bounds the memory that large buffers need; more where that
    /// would make too many messages.
    pub part_bytes: usize,
    /// Where all ranks are connected, broadcasts of more bytes go from rank to rank instead of from the root to all.
    pub star_bytes_max: usize,
}

/// Bytes of a tuning as ranks tell each other.
const ENCODED_BYTES: usize = 6 * 8;

impl Tuning {
    pub(crate) fn encode(&self) -> [u8; ENCODED_BYTES] {
        let Self { pair_bytes_max, one_shot_bytes_max, chain_bytes_min, chunk_bytes, part_bytes, star_bytes_max } =
            *self;
        let numbers = [pair_bytes_max, one_shot_bytes_max, chain_bytes_min, chunk_bytes, part_bytes, star_bytes_max];
        bytemuck::cast(numbers.map(|number| number as u64))
    }

    /// `None` when a number is larger than can be here.
    pub(crate) fn decode(bytes: &[u8; ENCODED_BYTES]) -> Option<Self> {
        let mut numbers = [0; 6];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = usize::try_from(bytemuck::pod_read_unaligned::<u64>(bytes)).ok()?;
        }
        let [pair_bytes_max, one_shot_bytes_max, chain_bytes_min, chunk_bytes, part_bytes, star_bytes_max] = numbers;
        Some(Self { pair_bytes_max, one_shot_bytes_max, chain_bytes_min, chunk_bytes, part_bytes, star_bytes_max })
    }
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
