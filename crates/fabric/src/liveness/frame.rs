//! What travels on a lifeline: frames of fixed layout.
//!
//! A frame is [`FRAME_BYTES`] bytes, all numbers little-endian: `rope` (4 bytes), generation (u32), sequence number
//! (u64), what it says (u8), cause (u8), length of the text (u16), two ranks (u32 each), numbers of cables and of
//! verdicts (u32 each), a time in microseconds (u64), the views of both sides of a mismatch (as message headers), text. Fields that a frame has no use for are zeros.

use std::io;
use std::time::Duration;

use super::rank_set::{RankSet, SET_BYTES};
use super::{Statement, Trouble};
use crate::error::Cause;
use crate::message::{HEADER_BYTES, decode_view, encode_view};

const MAGIC: &[u8; 4] = b"rope";
const TEXT_BYTES: usize = 84;
const VIEWS_AT: usize = 44;
const TEXT_AT: usize = VIEWS_AT + 2 * HEADER_BYTES;
/// Bytes of every frame.
pub(crate) const FRAME_BYTES: usize = TEXT_AT + TEXT_BYTES;
/// A side that does not read gets no more than this queued, in frames.
const QUEUE_MAX: usize = 256;
/// In place of a rank: nobody.
const NOBODY: u32 = u32::MAX;

/// What a frame says.
const HEARTBEAT: u8 = 1;
const ACCUSATION: u8 = 2;
const LOST: u8 = 3;
const MISMATCH: u8 = 4;
const GOODBYE: u8 = 5;

// The set of ranks that a heartbeat carries has its place where a mismatch has its first view.
const _: () = assert!(SET_BYTES <= HEADER_BYTES);

/// Bytes of a lifeline in both directions: pure, so that the same code serves sockets, simulation and tests.
#[derive(Debug)]
pub(crate) struct Codec {
    generation: u32,
    /// Ranks in the group: frames name no others.
    size: usize,
    sent: u64,
    received: u64,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Codec {
    pub(crate) fn new(generation: u32, size: usize) -> Self {
        Self { generation, size, sent: 0, received: 0, incoming: Vec::new(), outgoing: Vec::new() }
    }

    /// Queues a statement. A heartbeat is dropped while earlier frames have not gone, and any frame when the other side
    /// has not read for too long.
    pub(crate) fn queue(&mut self, statement: &Statement) {
        let is_heartbeat = matches!(statement, Statement::Alive { .. });
        if is_heartbeat && !self.outgoing.is_empty() || self.outgoing.len() >= QUEUE_MAX * FRAME_BYTES {
            return;
        }
        self.outgoing.extend_from_slice(&encode(self.generation, self.sent, statement));
        self.sent += 1;
    }

    /// What is to be written next.
    pub(crate) fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// So much of it has been written.
    pub(crate) fn advance(&mut self, count: usize) {
        self.outgoing.drain(..count);
    }

    /// Takes bytes that have come, in whatever portions.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// The next statement that is complete. Frames of older generations are skipped.
    ///
    /// # Errors
    /// [`Cause::Corrupt`] for what is no frame, comes from a later generation, or has come before.
    pub(crate) fn next(&mut self) -> Result<Option<Statement>, Cause> {
        while let Some((frame, _)) = self.incoming.split_first_chunk::<FRAME_BYTES>() {
            let frame = *frame;
            self.incoming.drain(..FRAME_BYTES);
            let (generation, sequence, statement) = decode(&frame)?;
            if generation < self.generation {
                continue;
            }
            if generation > self.generation || sequence != self.received {
                return Err(Cause::corrupt(format!(
                    "a sign of life with number {sequence} of generation {generation}, expected was number {} of {}",
                    self.received, self.generation
                )));
            }
            self.received += 1;
            if let Some(rank) = statement.ranks().into_iter().flatten().find(|&rank| rank >= self.size) {
                return Err(Cause::corrupt(format!("it speaks of rank {rank} in a group of {}", self.size)));
            }
            return Ok(Some(statement));
        }
        Ok(None)
    }
}

/// The fields of a frame as they lie in it.
#[derive(Default)]
struct Fields {
    ranks: [u32; 2],
    hops: u32,
    verdicts: u32,
    cause: u8,
    micros: u64,
    views: [[u8; HEADER_BYTES]; 2],
    text: String,
}

impl Fields {
    fn set_cause(&mut self, cause: &Cause) {
        match cause {
            Cause::Closed => self.cause = 1,
            Cause::Silent(after) => (self.cause, self.micros) = (2, micros(after)),
            Cause::Stalled(after) => (self.cause, self.micros) = (3, micros(after)),
            Cause::Left => self.cause = 4,
            Cause::Corrupt(what) => (self.cause, self.text) = (5, what.clone()),
            Cause::Io(error) => (self.cause, self.text) = (6, error.to_string()),
            Cause::Damaged(what) => (self.cause, self.text) = (7, what.clone()),
            Cause::Rdma(error) => (self.cause, self.text) = (8, error.clone()),
        }
    }

    fn cause(&self) -> Result<Cause, Cause> {
        let time = Duration::from_micros(self.micros);
        Ok(match self.cause {
            1 => Cause::Closed,
            2 => Cause::Silent(time),
            3 => Cause::Stalled(time),
            4 => Cause::Left,
            5 => Cause::Corrupt(self.text.clone()),
            6 => io::Error::other(self.text.clone()).into(),
            7 => Cause::Damaged(self.text.clone()),
            8 => Cause::Rdma(self.text.clone()),
            other => return Err(Cause::corrupt(format!("a sign of life with cause {other}"))),
        })
    }
}

fn encode(generation: u32, sequence: u64, statement: &Statement) -> [u8; FRAME_BYTES] {
    let mut fields = Fields::default();
    let says = match statement {
        Statement::Alive { waiting_for, interval, hears } => {
            fields.views[0][..SET_BYTES].copy_from_slice(&hears.0);
            fields.ranks[0] = number(*waiting_for);
            fields.micros = micros(interval);
            HEARTBEAT
        }
        Statement::Accusation { accuser, culprit, hops, verdicts, cause } => {
            (fields.hops, fields.verdicts) = (number(Some(*hops)), number(Some(*verdicts)));
            fields.ranks = [number(Some(*culprit)), number(Some(*accuser))];
            fields.set_cause(cause);
            ACCUSATION
        }
        Statement::Verdict(Trouble::Lost { rank, cause }) => {
            fields.ranks[0] = number(Some(*rank));
            fields.set_cause(cause);
            LOST
        }
        Statement::Verdict(Trouble::Mismatch { rank, seen_by, ours, theirs }) => {
            fields.ranks = [number(Some(*rank)), number(Some(*seen_by))];
            fields.views = [encode_view(ours), encode_view(theirs)];
            MISMATCH
        }
        Statement::Goodbye => GOODBYE,
    };
    write_fields(generation, sequence, says, &fields)
}

fn write_fields(generation: u32, sequence: u64, says: u8, fields: &Fields) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    let text = cut(&fields.text).as_bytes();
    stamp(&mut bytes, generation, sequence);
    bytes[16] = says;
    bytes[17] = fields.cause;
    // At most TEXT_BYTES.
    bytes[18..20].copy_from_slice(&(text.len() as u16).to_le_bytes());
    bytes[20..24].copy_from_slice(&fields.ranks[0].to_le_bytes());
    bytes[24..28].copy_from_slice(&fields.ranks[1].to_le_bytes());
    bytes[28..32].copy_from_slice(&fields.hops.to_le_bytes());
    bytes[32..36].copy_from_slice(&fields.verdicts.to_le_bytes());
    bytes[36..44].copy_from_slice(&fields.micros.to_le_bytes());
    bytes[VIEWS_AT..TEXT_AT].copy_from_slice(fields.views.as_flattened());
    bytes[TEXT_AT..TEXT_AT + text.len()].copy_from_slice(text);
    bytes
}

/// Puts the beginning of a frame right.
pub(super) fn stamp(frame: &mut [u8], generation: u32, sequence: u64) {
    frame[..4].copy_from_slice(MAGIC);
    frame[4..8].copy_from_slice(&generation.to_le_bytes());
    frame[8..16].copy_from_slice(&sequence.to_le_bytes());
}

/// Generation, sequence number and statement of a frame.
fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<(u32, u64, Statement), Cause> {
    if &bytes[..4] != MAGIC {
        return Err(Cause::corrupt("what came in place of a sign of life is none"));
    }
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let length = usize::from(u16::from_le_bytes([bytes[18], bytes[19]]));
    let text = bytes[TEXT_AT..].get(..length).ok_or_else(|| Cause::corrupt("a sign of life with too long a text"))?;
    let mut fields = Fields {
        ranks: [u32_at(20), u32_at(24)],
        cause: bytes[17],
        hops: u32_at(28),
        verdicts: u32_at(32),
        micros: u64_at(36),
        text: String::from_utf8_lossy(text).into_owned(),
        ..Fields::default()
    };
    fields.views.as_flattened_mut().copy_from_slice(&bytes[VIEWS_AT..TEXT_AT]);
    let rank = |at: usize| fields.ranks[at] as usize;
    let statement = match bytes[16] {
        HEARTBEAT => {
            let mut hears = RankSet::default();
            hears.0.copy_from_slice(&fields.views[0][..SET_BYTES]);
            let waiting_for = (fields.ranks[0] != NOBODY).then(|| rank(0));
            Statement::Alive { waiting_for, interval: Duration::from_micros(fields.micros), hears }
        }
        ACCUSATION => Statement::Accusation {
            accuser: rank(1),
            culprit: rank(0),
            hops: fields.hops as usize,
            verdicts: fields.verdicts as usize,
            cause: fields.cause()?,
        },
        LOST => Statement::Verdict(Trouble::Lost { rank: rank(0), cause: fields.cause()? }),
        MISMATCH => {
            let [ours, theirs] = fields.views.map(|view| decode_view(&view));
            Statement::Verdict(Trouble::Mismatch { rank: rank(0), seen_by: rank(1), ours, theirs })
        }
        GOODBYE => Statement::Goodbye,
        other => return Err(Cause::corrupt(format!("a sign of life of kind {other}"))),
    };
    Ok((u32_at(4), u64_at(8), statement))
}

fn micros(time: &Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn number(number: Option<usize>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(NOBODY)
}

/// As much of a text as fits, in whole characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::View;
    use crate::message::Kind;

    fn cause() -> impl Strategy<Value = Cause> {
        prop_oneof![
            Just(Cause::Closed),
            Just(Cause::Left),
            (0u64..1 << 50).prop_map(|micros| Cause::Silent(Duration::from_micros(micros))),
            (0u64..1 << 50).prop_map(|micros| Cause::Stalled(Duration::from_micros(micros))),
            "[a-z ä€]{0,30}".prop_map(Cause::Corrupt),
            "[a-z ]{0,80}".prop_map(|text| io::Error::other(text).into()),
        ]
    }

    fn statement() -> impl Strategy<Value = Statement> {
        let view = |operation| View {
            generation: 7,
            operation,
            kind: Some(Kind::Barrier),
            element: None,
            operator: None,
            wire: None,
            length: None,
            total: None,
        };
        prop_oneof![
            (proptest::option::of(0usize..8), 0u64..1 << 40, any::<[u8; SET_BYTES]>()).prop_map(
                |(waiting_for, micros, hears)| {
                    let (interval, hears) = (Duration::from_micros(micros), RankSet(hears));
                    Statement::Alive { waiting_for, interval, hears }
                }
            ),
            (0usize..8, 0usize..8, 0usize..9, cause()).prop_map(|(accuser, culprit, hops, cause)| {
                Statement::Accusation { accuser, culprit, hops, verdicts: accuser + culprit, cause }
            }),
            (0usize..8, cause()).prop_map(|(rank, cause)| Statement::Verdict(Trouble::Lost { rank, cause })),
            (0usize..8, 0usize..8, any::<u64>()).prop_map(move |(rank, seen_by, operation)| {
                let (ours, theirs) = (view(operation), View { length: Some(operation), ..view(0) });
                Statement::Verdict(Trouble::Mismatch { rank, seen_by, ours, theirs })
            }),
            Just(Statement::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn statements_survive_the_wire_in_any_portions(
            statements in proptest::collection::vec(statement(), 0..10), portion in 1usize..500
        ) {
            let (mut from, mut to) = (Codec::new(7, 8), Codec::new(7, 8));
            let mut heard = Vec::new();
            let mut bytes = Vec::new();
            for statement in &statements {
                from.queue(statement);
                bytes.extend_from_slice(from.outgoing());
                from.advance(from.outgoing().len());
            }
            for bytes in bytes.chunks(portion) {
                to.feed(bytes);
                while let Some(statement) = to.next().unwrap() {
                    heard.push(statement);
                }
            }
            prop_assert_eq!(format!("{heard:?}"), format!("{statements:?}"));
        }

        #[test]
        fn foreign_bytes_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..700), like: bool) {
            if like && bytes.len() > 8 {
                bytes[..4].copy_from_slice(MAGIC);
                bytes[4..8].copy_from_slice(&7u32.to_le_bytes());
            }
            let mut codec = Codec::new(7, 8);
            codec.feed(&bytes);
            while let Ok(Some(statement)) = codec.next() {
                prop_assert!(statement.ranks().into_iter().flatten().all(|rank| rank < 8));
            }
        }
    }

    #[test]
    fn replayed_frames_are_refused_and_old_ones_skipped() {
        let mut codec = Codec::new(7, 8);
        let frame = encode(7, 0, &Statement::Goodbye);
        codec.feed(&encode(6, 5, &Statement::Goodbye));
        codec.feed(&frame);
        assert!(matches!(codec.next(), Ok(Some(Statement::Goodbye))));
        codec.feed(&frame);
        assert!(matches!(codec.next(), Err(Cause::Corrupt(_))));
        let mut codec = Codec::new(7, 8);
        codec.feed(&encode(8, 0, &Statement::Goodbye));
        assert!(matches!(codec.next(), Err(Cause::Corrupt(_))));
    }

    #[test]
    fn a_deaf_side_takes_no_memory() {
        let mut codec = Codec::new(1, 2);
        for _ in 0..10_000 {
            codec.queue(&Statement::Alive { waiting_for: None, interval: Duration::ZERO, hears: RankSet::default() });
            codec.queue(&Statement::Verdict(Trouble::Lost { rank: 1, cause: Cause::Closed }));
        }
        assert!(codec.outgoing().len() <= QUEUE_MAX * FRAME_BYTES);
    }
}
