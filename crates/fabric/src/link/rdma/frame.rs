//! What travels over a queue pair: a header and, behind it, a piece of the stream.

/// Bytes of a header. All fields are little-endian:
///
/// | at | field |
/// |---|---|
/// | 0 | checksum (u32) of all that follows, CRC-32; zero where the connection is reliable |
/// | 4 | session (u32) |
/// | 8 | generation of the group (u32) |
/// | 12 | kind (u32) |
/// | 16 | number of the frame in its lane (u32) |
/// | 20 | number of the piece in the stream (u32) |
/// | 24 | bytes of the piece (u32) |
/// | 28 | pieces consumed of the small lane (u32), of the bulk lane (u32) |
/// | 36 | notes received of the small lane (u16), of the bulk lane (u16) |
pub(crate) const HEADER_BYTES: usize = 40;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A piece of the stream.
    Data = 0x5277_0001,
    /// Only tells what has been consumed.
    Note = 0x5277_0002,
    /// As a note, and wants one in return.
    Probe = 0x5277_0003,
    /// Ends the stream. Its `piece` is the number of pieces that there were.
    Goodbye = 0x5277_0004,
}

impl FrameKind {
    const ALL: [Self; 4] = [Self::Data, Self::Note, Self::Probe, Self::Goodbye];
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Tells this connection from all others, as numbers of queue pairs are used again.
    pub(crate) session: u32,
    pub(crate) generation: u32,
    pub(crate) kind: FrameKind,
    /// Counts the frames of a lane.
    pub(crate) number: u32,
    /// Counts the pieces of the stream, whatever lane and rail they take.
    pub(crate) piece: u32,
    pub(crate) length: u32,
    /// Pieces that the sender of this frame has consumed and made room for again, by lane of the rail it came on.
    pub(crate) consumed: [u32; 2],
    /// Notes that it has received, by lane.
    pub(crate) notes: [u16; 2],
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes, which is less than a header")]
    Short(usize),
    #[error("a frame that was damaged on the way")]
    Checksum,
    #[error("a frame of unknown kind {0:#x}")]
    Kind(u32),
    #[error("a frame with {length} bytes in {room}")]
    Length { length: u32, room: usize },
}

impl FrameHeader {
    /// Writes the header to the start of a frame whose piece is already there.
    pub(crate) fn write(&self, frame: &mut [u8], checked: bool) {
        frame[4..8].copy_from_slice(&self.session.to_le_bytes());
        frame[8..12].copy_from_slice(&self.generation.to_le_bytes());
        frame[12..16].copy_from_slice(&(self.kind as u32).to_le_bytes());
        frame[16..20].copy_from_slice(&self.number.to_le_bytes());
        frame[20..24].copy_from_slice(&self.piece.to_le_bytes());
        frame[24..28].copy_from_slice(&self.length.to_le_bytes());
        frame[28..32].copy_from_slice(&self.consumed[0].to_le_bytes());
        frame[32..36].copy_from_slice(&self.consumed[1].to_le_bytes());
        frame[36..38].copy_from_slice(&self.notes[0].to_le_bytes());
        frame[38..40].copy_from_slice(&self.notes[1].to_le_bytes());
        let end = HEADER_BYTES + self.length as usize;
        let checksum = if checked { crc32fast::hash(&frame[4..end]) } else { 0 };
        frame[0..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads the header of a frame. Its piece lies within the frame, and was not changed on the way if the frame is
    /// `checked`.
    pub(crate) fn read(frame: &[u8], checked: bool) -> Result<Self, FrameError> {
        let header = frame.first_chunk::<HEADER_BYTES>().ok_or(FrameError::Short(frame.len()))?;
        let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let (length, room) = (u32_at(24), frame.len() - HEADER_BYTES);
        // A damaged length is told from a wrong one where it can be.
        let body = frame.get(4..HEADER_BYTES.saturating_add(length as usize));
        if checked && body.is_none_or(|body| crc32fast::hash(body) != u32_at(0)) {
            return Err(FrameError::Checksum);
        }
        if length as usize > room {
            return Err(FrameError::Length { length, room });
        }
        let kind = FrameKind::ALL.into_iter().find(|kind| *kind as u32 == u32_at(12));
        Ok(Self {
            session: u32_at(4),
            generation: u32_at(8),
            kind: kind.ok_or(FrameError::Kind(u32_at(12)))?,
            number: u32_at(16),
            piece: u32_at(20),
            length,
            consumed: [u32_at(28), u32_at(32)],
            notes: [u16_at(36), u16_at(38)],
        })
    }
}

/// How many more `to` counts than `from`, if it is as many or more; counters wrap around.
pub(crate) fn ahead(from: u32, to: u32) -> Option<u32> {
    let difference = to.wrapping_sub(from);
    (difference <= u32::MAX / 2).then_some(difference)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = FrameHeader> {
        let numbers = (any::<[u32; 4]>(), any::<[u32; 2]>(), any::<[u16; 2]>());
        let kind = prop::sample::select(&FrameKind::ALL[..]);
        (numbers, kind).prop_map(|(([session, generation, number, piece], consumed, notes), kind)| FrameHeader {
            session,
            generation,
            kind,
            number,
            piece,
            length: 0,
            consumed,
            notes,
        })
    }

    fn frame(header: FrameHeader, piece: &[u8], checked: bool) -> (FrameHeader, Vec<u8>) {
        let header = FrameHeader { length: piece.len() as u32, ..header };
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend_from_slice(piece);
        header.write(&mut bytes, checked);
        (header, bytes)
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(header in header(), piece: Vec<u8>, checked: bool, padding in 0usize..100) {
            let (header, mut bytes) = frame(header, &piece, checked);
            bytes.resize(bytes.len() + padding, 0xaa);
            prop_assert_eq!(FrameHeader::read(&bytes, checked), Ok(header));
            prop_assert_eq!(&bytes[HEADER_BYTES..][..header.length as usize], &piece[..]);
        }

        #[test]
        fn a_changed_bit_is_noticed(header in header(), piece: Vec<u8>, at: prop::sample::Index, bit in 0u32..8) {
            let (_, mut bytes) = frame(header, &piece, true);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(FrameHeader::read(&bytes, true), Err(FrameError::Checksum));
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: Vec<u8>, checked: bool) {
            if let Ok(header) = FrameHeader::read(&bytes, checked) {
                prop_assert!(header.length as usize + HEADER_BYTES <= bytes.len());
            }
        }
    }

    #[test]
    fn counters_wrap_around() {
        assert_eq!(ahead(u32::MAX, 1), Some(2));
        assert_eq!(ahead(5, 5), Some(0));
        assert_eq!(ahead(6, 5), None);
    }
}
