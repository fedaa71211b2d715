//! Guesses at what comes next, so that one step can take several tokens of a sequence.
//!
//! A step over a few tokens costs little more than one over a single token, as both read all weights. So a sequence goes on
//! with its last token and a draft of those that may follow. From the first row the next token is drawn as ever; where it is
//! the first one of the draft, the second row is what would have been computed for it, and so on up to the first token that
//! is another one. Each token is drawn from the logits, and with the random number, with which it would have been drawn
//! without a draft: so not only their distribution (rejection sampling, Leviathan and others 2023) but every token is the same.

mod control;
mod cost;
mod lookup;

use control::Control;
pub(crate) use cost::StepCost;
use lookup::Lookup;

use crate::request::Drafts;

/// Tokens that all drafts of a step have together, at most.
pub(crate) const DRAFTS_MAX: usize = 32;

/// The drafts of one sequence.
pub(crate) struct Speculation {
    lookup: Lookup,
    control: Control,
    /// Draft of the step under way.
    draft: Vec<u32>,
    /// Tokens of it that were drawn.
    accepted: usize,
    total: Drafts,
}

impl Speculation {
    /// Drafts of up to `most` tokens for a sequence that begins with `known`, of whose answer `prediction` may be a part.
    pub(crate) fn new(prediction: &[u32], known: &[u32], most: usize) -> Self {
        let mut lookup = Lookup::default();
        prediction.iter().chain(known).for_each(|&id| lookup.push(id));
        Self {
            lookup,
            control: Control::new(most),
            draft: Vec::with_capacity(most),
            accepted: 0,
            total: Drafts::default(),
        }
    }

    /// A draft of at most `most` tokens for the next step, which may be empty.
    pub(crate) fn draft(&mut self, most: usize) -> &[u32] {
        self.accepted = 0;
        self.draft.clear();
        let length = self.control.length().min(most);
        if length > 0 {
            self.lookup.propose(length, &mut self.draft);
        }
        self.control.pass();
        &self.draft
    }

    /// A token was drawn. Returns whether it is the next one of the draft.
    pub(crate) fn hear(&mut self, id: u32) -> bool {
        self.lookup.push(id);
        let expected = self.draft.get(self.accepted) == Some(&id);
        self.accepted += usize::from(expected);
        expected
    }

    /// The step is over, in which each drafted token cost as much as `price` others. Returns how many of them were right.
    pub(crate) fn settle(&mut self, price: f64) -> usize {
        let (drafted, accepted) = (self.draft.len(), self.accepted);
        if drafted > 0 {
            self.total.drafted += drafted;
            self.total.accepted += accepted;
            self.control.learn(drafted, accepted, price);
        }
        self.draft.clear();
        accepted
    }

    /// The draft was not used.
    pub(crate) fn retract(&mut self) {
        self.draft.clear();
    }

    /// What came of all drafts so far.
    pub(crate) fn total(&self) -> Drafts {
        self.total
    }
}
