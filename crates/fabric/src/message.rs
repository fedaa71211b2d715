//! The header that every message carries.

use std::fmt;

use crate::error::View;

/// Bytes of a header: generation (u32), kind (u32), operation (u64), length (u64), all little-endian.
pub(crate) const HEADER_BYTES: usize = 24;

/// In place of a length in a view: any will do.
const ANY_LENGTH: u64 = u64::MAX;

/// The largest message that a rank takes whose length it does not know beforehand, in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;

/// The operation that a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// From one rank to another.
    Send = 1,
    /// From one rank to all.
    Broadcast = 2,
    /// All slices to all ranks.
    AllGather = 3,
    /// All slices to one rank.
    Gather = 4,
    /// The sums of all ranks to all ranks.
    AllReduce = 5,
    /// Nothing but the arrival itself.
    Barrier = 6,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        [Self::Send, Self::Broadcast, Self::AllGather, Self::Gather, Self::AllReduce, Self::Barrier]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::Gather => "gather",
            Self::AllReduce => "all_reduce",
            Self::Barrier => "barrier",
        })
    }
}

/// A header as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u32,
    pub(crate) kind: Kind,
    pub(crate) operation: u64,
    pub(crate) length: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.generation.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.operation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

/// What a received header says. Any bytes decode to something, which is then compared with what was expected.
pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> View {
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    View { generation: u32_at(0), kind: Kind::from_number(u32_at(4)), operation: u64_at(8), length: Some(u64_at(16)) }
}

/// A view as the others are told of it, who have not seen the header themselves.
pub(crate) fn encode_view(view: &View) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&view.generation.to_le_bytes());
    bytes[4..8].copy_from_slice(&view.kind.map_or(0, |kind| kind as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&view.operation.to_le_bytes());
    bytes[16..24].copy_from_slice(&view.length.unwrap_or(ANY_LENGTH).to_le_bytes());
    bytes
}

/// The inverse of [`encode_view`].
pub(crate) fn decode_view(bytes: &[u8; HEADER_BYTES]) -> View {
    let view = decode(bytes);
    View { length: view.length.filter(|&length| length != ANY_LENGTH), ..view }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn headers_survive_the_wire(generation: u32, operation: u64, length: u64) {
            let view = decode(&Header { generation, kind: Kind::Gather, operation, length }.encode());
            let expected = View { generation, kind: Some(Kind::Gather), operation, length: Some(length) };
            proptest::prop_assert_eq!(view, expected);
        }
    }
}
