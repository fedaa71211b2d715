//! The header that every message carries.

use std::fmt;

use crate::element::{ElementType, Operator, Wire};
use crate::error::View;

/// Bytes of a header: generation (u32), kind, element type, operator, wire (u8 each), operation (u64), length of this
/// message (u64), length of the whole collective (u64), all little-endian.
pub const HEADER_BYTES: usize = 32;
/// The bytes of a header that do not depend on lengths.
pub(crate) const HEADER_BYTES_BEFORE_LENGTHS: usize = 16;

/// In place of a length in a view: any will do.
const ANY_LENGTH: u64 = u64::MAX;
/// In place of a type of element or a wire in a view: one that is none.
const UNKNOWN: u8 = u8::MAX;

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
    /// To each rank its slice of the sums of all ranks.
    ReduceScatter = 7,
    /// From each rank another slice to each other rank.
    AllToAll = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Send,
        Self::Broadcast,
        Self::AllGather,
        Self::Gather,
        Self::AllReduce,
        Self::Barrier,
        Self::ReduceScatter,
        Self::AllToAll,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
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
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
        })
    }
}

/// What a collective is, apart from its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    pub(crate) kind: Kind,
    pub(crate) element: ElementType,
    /// `None` where nothing is reduced.
    pub(crate) operator: Option<Operator>,
    pub(crate) wire: Wire,
}

impl Tags {
    /// Of a collective that reduces nothing.
    pub(crate) fn moving(kind: Kind, element: ElementType) -> Self {
        Self { kind, element, operator: None, wire: Wire::Exact }
    }
}

/// A header as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u32,
    pub(crate) tags: Tags,
    pub(crate) operation: u64,
    pub(crate) length: u64,
    pub(crate) total: u64,
}

impl Header {
    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let Tags { kind, element, operator, wire } = self.tags;
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.generation.to_le_bytes());
        bytes[4] = kind as u8;
        bytes[5] = element as u8;
        bytes[6] = operator.map_or(0, |operator| operator as u8);
        bytes[7] = wire as u8;
        bytes[8..16].copy_from_slice(&self.operation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.total.to_le_bytes());
        bytes
    }
}

/// What a received header says. Any bytes decode to something, which is then compared with what was expected.
pub fn decode_header(bytes: &[u8; HEADER_BYTES]) -> View {
    let u64_at = |at: usize| (0..8).fold(0, |number, index| number | u64::from(bytes[at + index]) << (8 * index));
    View {
        generation: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        kind: Kind::from_number(bytes[4]),
        element: ElementType::from_number(bytes[5]),
        operator: Operator::from_number(bytes[6]),
        wire: Wire::from_number(bytes[7]),
        operation: u64_at(8),
        length: Some(u64_at(16)),
        total: Some(u64_at(24)),
    }
}

/// A view as the others are told of it, who have not seen the header themselves.
pub(crate) fn encode_view(view: &View) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&view.generation.to_le_bytes());
    bytes[4] = view.kind.map_or(0, |kind| kind as u8);
    bytes[5] = view.element.map_or(UNKNOWN, |element| element as u8);
    bytes[6] = view.operator.map_or(0, |operator| operator as u8);
    bytes[7] = view.wire.map_or(UNKNOWN, |wire| wire as u8);
    bytes[8..16].copy_from_slice(&view.operation.to_le_bytes());
    bytes[16..24].copy_from_slice(&view.length.unwrap_or(ANY_LENGTH).to_le_bytes());
    bytes[24..32].copy_from_slice(&view.total.unwrap_or(ANY_LENGTH).to_le_bytes());
    bytes
}

/// The inverse of [`encode_view`].
pub(crate) fn decode_view(bytes: &[u8; HEADER_BYTES]) -> View {
    let view = decode_header(bytes);
    let known = |length: Option<u64>| length.filter(|&length| length != ANY_LENGTH);
    View { length: known(view.length), total: known(view.total), ..view }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn headers_survive_the_wire(generation: u32, operation: u64, length: u64, total: u64) {
            let tags = Tags {
                kind: Kind::ReduceScatter,
                element: ElementType::Bf16,
                operator: Some(Operator::Max),
                wire: Wire::Int8,
            };
            let view = decode_header(&Header { generation, tags, operation, length, total }.encode());
            let expected = View {
                generation,
                kind: Some(tags.kind),
                element: Some(tags.element),
                operator: tags.operator,
                wire: Some(tags.wire),
                operation,
                length: Some(length),
                total: Some(total),
            };
            proptest::prop_assert_eq!(view, expected);
        }

        #[test]
        fn any_bytes_are_a_header_and_can_be_shown(bytes: [u8; HEADER_BYTES]) {
            proptest::prop_assert!(!decode_header(&bytes).to_string().is_empty());
        }
    }

    #[test]
    fn every_kind_has_its_number() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
            assert!(!kind.to_string().is_empty());
        }
        assert_eq!(Kind::from_number(0), None);
    }
}
