//! What rank 0 tells the others to do next: the step plan.

use std::ops::Range;

use model::Stretch;

use crate::ranks::blocks::BLOCK;

/// Bytes before the parts: kind, three reserved bytes, then the counts of parts, of tokens, of changes of tables, of blocks that
/// these add, and of copies, each a little-endian u32.
const HEADER: usize = 24;
/// Bytes of a part: slot, first position, tokens, and what is wanted (kind in the lowest byte, candidates above it).
const PART: usize = 16;
/// Bytes of a change: slot, blocks kept, blocks added; and of a copy: from, to.
const CHANGE: usize = 12;
const COPY: usize = 8;

/// Most candidates for which rank 0 asks. More are hardly less than a slice of the vocabulary.
pub(crate) const CANDIDATES_MAX: usize = 256;

/// One instruction to all ranks of the group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Plan<'a> {
    /// Something other than computing.
    Signal(Signal),
    /// Run the model over some tokens.
    Step(StepPlan<'a>),
}

/// An instruction that needs no further words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Nothing to do; sent now and then so that a dead leader is told from an idle one.
    Idle,
    /// The group gets to work: start counting time.
    Begin,
    /// A generation has ended: send rank 0 the time counts, and start anew.
    Report,
    /// The group ends.
    Stop,
}

/// What ranks have room for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Sequences that the KV cache holds.
    pub(crate) slots: usize,
    /// Positions that each of them may have.
    pub(crate) context: usize,
    /// Tokens in a step.
    pub(crate) step_tokens: usize,
    /// Blocks of the KV cache.
    pub(crate) kv_blocks: usize,
}

/// One forward pass over tokens of several sequences.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Step {
    pub(crate) stretches: Vec<Stretch>,
    /// What rank 0 wants to know of each stretch.
    pub(crate) wanted: Vec<Wanted>,
    /// The tokens of all stretches, one after the other.
    pub(crate) tokens: Vec<u32>,
    /// What becomes of the tables of slots before anything is computed, and the blocks that all these changes add.
    pub(crate) changes: Vec<Change>,
    pub(crate) added: Vec<u32>,
    /// Blocks that are copied before that: from, to; in this order.
    pub(crate) copies: Vec<[u32; 2]>,
}

/// A change of the table of blocks that a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) slot: usize,
    /// Blocks at the beginning that stay.
    pub(crate) kept: usize,
    /// Blocks that follow them from now on.
    pub(crate) added: usize,
}

/// What rank 0 wants to know of a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// All logits of the last token.
    Last,
    /// All logits of every token.
    All,
    /// So many of the likeliest candidates to follow the last token.
    Best(usize),
    /// So many of the likeliest candidates to follow each token.
    EachBest(usize),
    /// The hidden state of each token, as the final norm leaves it.
    Hidden,
    /// The same of the last token.
    LastHidden,
}

/// A token of a step of which rank 0 wants to know something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Its place among the tokens of the step.
    pub(crate) row: usize,
    /// How many candidates are wanted, all logits if `None`.
    pub(crate) best: Option<usize>,
}

impl Step {
    /// Adds the next tokens of a sequence.
    pub(crate) fn push(&mut self, slot: usize, first_position: usize, tokens: &[u32], wanted: Wanted) {
        self.stretches.push(Stretch { slot, first_position, tokens: tokens.len() });
        self.wanted.push(wanted);
        self.tokens.extend_from_slice(tokens);
    }

    /// Changes the table of a slot.
    pub(crate) fn change(&mut self, slot: usize, kept: usize, added: &[u32]) {
        self.changes.push(Change { slot, kept, added: added.len() });
        self.added.extend_from_slice(added);
    }

    pub(crate) fn clear(&mut self) {
        self.stretches.clear();
        self.wanted.clear();
        self.tokens.clear();
        self.changes.clear();
        self.added.clear();
        self.copies.clear();
    }

    /// The tokens of which rank 0 wants to know something, in order.
    pub(crate) fn asked(&self) -> impl Iterator<Item = Asked> {
        let mut end = 0;
        self.stretches.iter().zip(&self.wanted).flat_map(move |(stretch, wanted)| {
            end += stretch.tokens;
            let (rows, best): (Range<usize>, _) = match *wanted {
                Wanted::Nothing | Wanted::Hidden | Wanted::LastHidden => (0..0, None),
                Wanted::Last => (end - 1..end, None),
                Wanted::All => (end - stretch.tokens..end, None),
                Wanted::Best(count) => (end - 1..end, Some(count)),
                Wanted::EachBest(count) => (end - stretch.tokens..end, Some(count)),
            };
            rows.map(move |row| Asked { row, best })
        })
    }

    /// The tokens whose hidden state rank 0 wants, in order.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = usize> {
        let mut end = 0;
        self.stretches.iter().zip(&self.wanted).flat_map(move |(stretch, wanted)| {
            end += stretch.tokens;
            match *wanted {
                Wanted::Hidden => end - stretch.tokens..end,
                Wanted::LastHidden => end - 1..end,
                _ => 0..0,
            }
        })
    }
}

/// A [`Step`] as it travels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepPlan<'a> {
    parts: &'a [u8],
    changes: &'a [u8],
    added: &'a [u8],
    copies: &'a [u8],
    tokens: &'a [u8],
}

impl StepPlan<'_> {
    /// Replaces `step` with this one.
    pub(crate) fn copy_to(&self, step: &mut Step) {
        step.clear();
        for part in self.parts.chunks_exact(PART) {
            // Only plans with known words get here.
            step.wanted.push(decode_wanted(number(part, 12)).unwrap_or(Wanted::Nothing));
            let [slot, first_position, tokens] = [0, 4, 8].map(|at| number(part, at) as usize);
            step.stretches.push(Stretch { slot, first_position, tokens });
        }
        for change in self.changes.chunks_exact(CHANGE) {
            let [slot, kept, added] = [0, 4, 8].map(|at| number(change, at) as usize);
            step.changes.push(Change { slot, kept, added });
        }
        step.added.extend(self.added.chunks_exact(4).map(|block| number(block, 0)));
        step.copies.extend(self.copies.chunks_exact(COPY).map(|copy| [0, 4].map(|at| number(copy, at))));
        step.tokens.extend(self.tokens.chunks_exact(4).map(|id| number(id, 0)));
    }
}

/// The first byte of each kind of plan.
const SIGNALS: [(u8, Signal); 4] = [(0, Signal::Idle), (1, Signal::Begin), (3, Signal::Report), (4, Signal::Stop)];
const STEP: u8 = 2;

/// Replaces `message` with a signal.
pub(crate) fn encode_signal(message: &mut Vec<u8>, signal: Signal) {
    message.clear();
    message.resize(HEADER, 0);
    for (kind, known) in SIGNALS {
        if known == signal {
            message[0] = kind;
        }
    }
}

/// Replaces `message` with the plan of a step.
pub(crate) fn encode_step(message: &mut Vec<u8>, step: &Step) {
    message.clear();
    message.extend([STEP, 0, 0, 0]);
    message.extend((step.stretches.len() as u32).to_le_bytes());
    let counts = [step.tokens.len(), step.changes.len(), step.added.len(), step.copies.len()];
    message.extend(counts.into_iter().flat_map(|count| (count as u32).to_le_bytes()));
    for (stretch, wanted) in step.stretches.iter().zip(&step.wanted) {
        let Stretch { slot, first_position, tokens } = *stretch;
        message.extend([slot, first_position, tokens].into_iter().flat_map(|number| (number as u32).to_le_bytes()));
        message.extend(encode_wanted(*wanted).to_le_bytes());
    }
    for &Change { slot, kept, added } in &step.changes {
        message.extend([slot, kept, added].into_iter().flat_map(|number| (number as u32).to_le_bytes()));
    }
    message.extend(step.added.iter().flat_map(|block| block.to_le_bytes()));
    message.extend(step.copies.as_flattened().iter().flat_map(|block| block.to_le_bytes()));
    message.extend(step.tokens.iter().flat_map(|id| id.to_le_bytes()));
}

/// Reads a plan; `None` if it is not one, or names slots, positions or tokens that the ranks have no room for.
pub(crate) fn decode(message: &[u8], room: Room) -> Option<Plan<'_>> {
    let (header, rest) = message.split_at_checked(HEADER)?;
    if header[0] != STEP {
        let (_, signal) = SIGNALS.into_iter().find(|(kind, _)| *kind == header[0])?;
        return rest.is_empty().then_some(Plan::Signal(signal));
    }
    let [parts, count, changes, added, copies] = [4, 8, 12, 16, 20].map(|at| number(header, at) as usize);
    if count > room.step_tokens || parts > count {
        return None;
    }
    let (parts, rest) = rest.split_at_checked(parts * PART)?;
    let mut left = count;
    for part in parts.chunks_exact(PART) {
        decode_wanted(number(part, 12))?;
        let [slot, first_position, tokens] = [0, 4, 8].map(|at| number(part, at) as usize);
        left = left.checked_sub(tokens)?;
        if slot >= room.slots || tokens == 0 || first_position.checked_add(tokens)? > room.context {
            return None;
        }
    }
    let (changes, rest) = rest.split_at_checked(changes.checked_mul(CHANGE)?)?;
    let (added, rest) = rest.split_at_checked(added.checked_mul(4)?)?;
    let (copies, tokens) = rest.split_at_checked(copies.checked_mul(COPY)?)?;
    let whole = left == 0 && count > 0 && tokens.len() == count * 4;
    let fit = changes_fit(changes, added.len() / 4, room) && blocks_exist(added, room) && blocks_exist(copies, room);
    (whole && fit).then_some(Plan::Step(StepPlan { parts, changes, added, copies, tokens }))
}

/// Whether changes of tables name slots and blocks that ranks have room for, and add as many blocks as there are.
fn changes_fit(changes: &[u8], added: usize, room: Room) -> bool {
    let mut left = added;
    let most = room.context.div_ceil(BLOCK) + 1;
    let fits = changes.chunks_exact(CHANGE).all(|change| {
        let [slot, kept, added] = [0, 4, 8].map(|at| number(change, at) as usize);
        let enough = left >= added;
        left = left.saturating_sub(added);
        enough && slot < room.slots && kept.saturating_add(added) <= most
    });
    fits && left == 0
}

/// Whether all of these numbers are those of blocks.
fn blocks_exist(numbers: &[u8], room: Room) -> bool {
    numbers.chunks_exact(4).all(|block| (number(block, 0) as usize) < room.kv_blocks)
}

fn encode_wanted(wanted: Wanted) -> u32 {
    match wanted {
        Wanted::Nothing => 0,
        Wanted::Last => 1,
        Wanted::All => 2,
        Wanted::Best(count) => 3 | (count as u32) << 8,
        Wanted::EachBest(count) => 4 | (count as u32) << 8,
        Wanted::Hidden => 5,
        Wanted::LastHidden => 6,
    }
}

fn decode_wanted(word: u32) -> Option<Wanted> {
    match (word & 0xff, (word >> 8) as usize) {
        (0, 0) => Some(Wanted::Nothing),
        (1, 0) => Some(Wanted::Last),
        (2, 0) => Some(Wanted::All),
        (3, count @ 1..=CANDIDATES_MAX) => Some(Wanted::Best(count)),
        (4, count @ 1..=CANDIDATES_MAX) => Some(Wanted::EachBest(count)),
        (5, 0) => Some(Wanted::Hidden),
        (6, 0) => Some(Wanted::LastHidden),
        _ => None,
    }
}

/// The number at `at`. The caller has made sure that it is there.
fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: Room = Room { slots: 3, context: 1000, step_tokens: 16, kv_blocks: 40 };

    fn decoded(message: &[u8], room: Room) -> Option<Step> {
        let mut step = Step { tokens: vec![9], ..Step::default() };
        match decode(message, room)? {
            Plan::Step(plan) => plan.copy_to(&mut step),
            Plan::Signal(_) => return None,
        }
        Some(step)
    }

    #[test]
    fn plans_survive_the_wire() {
        let mut message = Vec::new();
        for (_, signal) in SIGNALS {
            encode_signal(&mut message, signal);
            assert_eq!(decode(&message, ROOM), Some(Plan::Signal(signal)));
        }
        let mut step = Step::default();
        step.push(2, 5, &[1, 70_000], Wanted::Last);
        step.push(0, 0, &[4], Wanted::Nothing);
        step.push(1, 7, &[3], Wanted::Best(40));
        step.push(1, 8, &[3, 6], Wanted::All);
        step.push(2, 7, &[8, 9], Wanted::EachBest(2));
        step.push(0, 1, &[5, 5], Wanted::LastHidden);
        step.push(2, 1, &[5, 6], Wanted::Hidden);
        encode_step(&mut message, &step);
        assert_eq!(decoded(&message, ROOM), Some(step.clone()));
        let asked: Vec<_> = step.asked().map(|asked| (asked.row, asked.best)).collect();
        assert!(step.hidden().eq([9, 10, 11]));
        assert_eq!(asked, [(1, None), (3, Some(40)), (4, None), (5, None), (6, Some(2)), (7, Some(2))]);
        // The same plan fits neither fewer slots nor a shorter context nor a smaller step.
        assert_eq!(decoded(&message, Room { slots: 3, context: 10, step_tokens: 12, kv_blocks: 40 }), Some(step));
        assert_eq!(decoded(&message, Room { slots: 2, context: 10, step_tokens: 12, kv_blocks: 40 }), None);
        assert_eq!(decoded(&message, Room { slots: 3, context: 9, step_tokens: 12, kv_blocks: 40 }), None);
        assert_eq!(decoded(&message, Room { slots: 3, context: 10, step_tokens: 11, kv_blocks: 40 }), None);
    }

    #[test]
    fn tables_change_within_bounds() {
        let mut step = Step::default();
        step.push(2, 60, &[1, 70_000], Wanted::Last);
        step.change(2, 1, &[39, 0]);
        step.change(0, 0, &[]);
        step.copies.extend([[3, 4], [4, 5]]);
        let mut message = Vec::new();
        encode_step(&mut message, &step);
        assert_eq!(decoded(&message, ROOM), Some(step.clone()));
        let room = |slots, context, kv_blocks| Room { slots, context, step_tokens: 16, kv_blocks };
        assert_eq!(decoded(&message, room(3, 62, 40)), Some(step.clone()));
        assert_eq!(decoded(&message, room(3, 62, 39)), None);
        assert_eq!(decoded(&message, room(2, 62, 40)), None);
        step.change(1, 40, &[]);
        encode_step(&mut message, &step);
        assert_eq!(decoded(&message, ROOM), None);
        // More blocks than the changes take.
        step.changes.pop();
        step.added.push(1);
        encode_step(&mut message, &step);
        assert_eq!(decoded(&message, ROOM), None);
    }

    #[test]
    fn candidates_have_a_bound() {
        let mut message = Vec::new();
        for (count, fits) in [(0, false), (1, true), (CANDIDATES_MAX, true), (CANDIDATES_MAX + 1, false)] {
            for wanted in [Wanted::Best(count), Wanted::EachBest(count)] {
                let mut step = Step::default();
                step.push(0, 0, &[1], wanted);
                encode_step(&mut message, &step);
                assert_eq!(decoded(&message, ROOM).is_some(), fits, "{count}");
            }
        }
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(message in prop::collection::vec(any::<u8>(), 0..96), step in any::<bool>()) {
            let mut message = message;
            if let (true, Some(kind)) = (step, message.first_mut()) {
                *kind = STEP;
            }
            let _ = decoded(&message, ROOM);
        }

        #[test]
        fn a_cut_step_is_refused(tokens in prop::collection::vec(any::<u32>(), 1..16), cut in 1_usize..40) {
            let mut step = Step::default();
            step.push(0, 0, &tokens, Wanted::All);
            let mut message = Vec::new();
            encode_step(&mut message, &step);
            message.truncate(message.len() - cut.min(message.len()));
            prop_assert_eq!(decoded(&message, ROOM), None);
        }
    }
}
