//! What rank 0 tells the others to do next: the step plan.

use std::ops::Range;

/// Bytes before the tokens: kind, logits wanted, two reserved bytes, then the first position and the token count, each
/// a little-endian u32.
const HEADER: usize = 12;

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
    /// A generation begins: start counting time.
    Begin,
    /// A generation has ended: send rank 0 the time counts.
    Report,
    /// The group ends.
    Stop,
}

/// One forward pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepPlan<'a> {
    /// Position of the first token.
    pub(crate) first_position: usize,
    /// The tokens, at least one.
    pub(crate) tokens: Tokens<'a>,
    /// For which tokens the logits are wanted.
    pub(crate) logits: Wanted,
}

/// Token ids as they travel: little-endian u32s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tokens<'a>(&'a [u8]);

/// For which tokens of a step rank 0 wants logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    None,
    Last,
    All,
}

impl Wanted {
    /// The rows of a step of `tokens` tokens for which logits are wanted.
    pub(crate) fn rows(self, tokens: usize) -> Range<usize> {
        match self {
            Wanted::None => 0..0,
            Wanted::Last => tokens - 1..tokens,
            Wanted::All => 0..tokens,
        }
    }
}

impl Tokens<'_> {
    /// Writes the ids into `ids`, replacing what it held.
    pub(crate) fn copy_to(&self, ids: &mut Vec<u32>) {
        ids.clear();
        ids.extend(self.0.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])));
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
pub(crate) fn encode_step(message: &mut Vec<u8>, first_position: usize, tokens: &[u32], logits: Wanted) {
    let wanted = match logits {
        Wanted::None => 0,
        Wanted::Last => 1,
        Wanted::All => 2,
    };
    message.clear();
    message.extend([STEP, wanted, 0, 0]);
    message.extend((first_position as u32).to_le_bytes());
    message.extend((tokens.len() as u32).to_le_bytes());
    message.extend(tokens.iter().flat_map(|id| id.to_le_bytes()));
}

/// Reads a plan; `None` if it is not one, or names positions or tokens that the ranks have no room for.
pub(crate) fn decode(message: &[u8], context: usize, step_tokens: usize) -> Option<Plan<'_>> {
    let (header, tokens) = message.split_at_checked(HEADER)?;
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    let (first_position, count) = (number(4), number(8));
    if header[0] != STEP {
        let (_, signal) = SIGNALS.into_iter().find(|(kind, _)| *kind == header[0])?;
        return tokens.is_empty().then_some(Plan::Signal(signal));
    }
    let logits = match header[1] {
        0 => Wanted::None,
        1 => Wanted::Last,
        2 => Wanted::All,
        _ => return None,
    };
    let fits = (1..=step_tokens).contains(&count) && first_position.checked_add(count)? <= context;
    let whole = tokens.len() == count * 4;
    (fits && whole).then_some(Plan::Step(StepPlan { first_position, tokens: Tokens(tokens), logits }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plans_survive_the_wire() {
        let mut message = Vec::new();
        for (_, signal) in SIGNALS {
            encode_signal(&mut message, signal);
            assert_eq!(decode(&message, 8, 8), Some(Plan::Signal(signal)));
        }
        encode_step(&mut message, 5, &[1, 70_000], Wanted::Last);
        let Some(Plan::Step(step)) = decode(&message, 7, 2) else { panic!("not a step") };
        let mut ids = vec![9];
        step.tokens.copy_to(&mut ids);
        assert_eq!((step.first_position, ids, step.logits), (5, vec![1, 70_000], Wanted::Last));
        assert_eq!(step.logits.rows(2), 1..2);
        // The same plan does not fit a shorter context or a smaller step.
        assert_eq!(decode(&message, 6, 2), None);
        assert_eq!(decode(&message, 7, 1), None);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(message in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&message, 1000, 16);
        }

        #[test]
        fn a_cut_step_is_refused(tokens in prop::collection::vec(any::<u32>(), 1..16), cut in 1_usize..12) {
            let mut message = Vec::new();
            encode_step(&mut message, 0, &tokens, Wanted::All);
            message.truncate(message.len() - cut.min(message.len()));
            prop_assert_eq!(decode(&message, 100, 16), None);
        }
    }
}
