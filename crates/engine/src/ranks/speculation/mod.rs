//! Guesses at what comes next, so that one step can take several tokens of a sequence.
//!
//! A step over a few tokens costs little more than one over a single token, as both read all weights. So a sequence goes on
//! with its last token and a draft of those that may follow. From the first row the next token is drawn as ever; where it is
//! the first one of the draft, the second row is what would have been computed for it, and so on up to the first token that
//! is another one. Each token is drawn from the logits, and with the random number, with which it would have been drawn
//! without a draft: so not only their distribution (rejection sampling, Leviathan and others 2023) but every token is the same.

mod calibration;
mod control;
mod cost;
mod draft_model;
mod lookup;

use calibration::Calibration;
use control::Control;
pub(crate) use cost::StepCost;
pub(crate) use draft_model::{DraftModel, Guess, Wanted, Wish};
use lookup::Lookup;

use crate::request::Drafts;

/// Tokens that all drafts of a step have together, at most.
pub(crate) const DRAFTS_MAX: usize = 32;

/// What a drafted token costs, in tokens that would have been generated in the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Price {
    /// One that was found in the text: a further row of the step.
    pub(crate) row: f64,
    /// One of the draft model: the same and the time of that model.
    pub(crate) model: f64,
}

/// The drafts of one sequence.
pub(crate) struct Speculation {
    lookup: Lookup,
    /// Tokens of the prediction, which the lookup has before those of the sequence.
    predicted: usize,
    /// Of drafts that are found, and of those of the draft model.
    control: Control,
    model_control: Control,
    calibration: Calibration,
    /// What the draft model thinks of the draft under way, if it is its own.
    probabilities: Vec<f64>,
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
            predicted: prediction.len(),
            control: Control::new(most),
            model_control: Control::new(most),
            calibration: Calibration::default(),
            probabilities: Vec::new(),
            draft: Vec::with_capacity(most),
            accepted: 0,
            total: Drafts::default(),
        }
    }

    /// A draft of at most `most` tokens for the next step, which may be empty.
    pub(crate) fn draft(&mut self, most: usize) -> &[u32] {
        self.accepted = 0;
        self.draft.clear();
        self.probabilities.clear();
        let length = self.control.length().min(most);
        if length > 0 {
            self.lookup.propose(length, &mut self.draft);
        }
        self.control.pass();
        &self.draft
    }

    /// What the draft model should add, at most `most` tokens, where no draft was found.
    pub(crate) fn wish(&mut self, most: usize) -> Option<Wanted<'_>> {
        let length = self.model_control.length().min(most);
        self.model_control.pass();
        (self.draft.is_empty() && length > 0)
            .then(|| (&self.lookup.tokens()[self.predicted..], length, &self.calibration))
    }

    /// Takes a draft of the draft model for the next step.
    pub(crate) fn take_draft(&mut self, draft: &[Guess]) {
        self.draft.extend(draft.iter().map(|guess| guess.id));
        self.probabilities.extend(draft.iter().map(|guess| guess.probability));
    }

    /// A token was drawn. Returns whether it is the next one of the draft.
    pub(crate) fn hear(&mut self, id: u32) -> bool {
        self.lookup.push(id);
        let expected = self.draft.get(self.accepted) == Some(&id);
        self.accepted += usize::from(expected);
        expected
    }

    /// The step is over, in which drafted tokens had this price. Returns how many of them were wrong.
    pub(crate) fn settle(&mut self, price: Price) -> usize {
        let (drafted, accepted) = (self.draft.len(), self.accepted);
        if drafted > 0 {
            self.total.drafted += drafted;
            self.total.accepted += accepted;
            if self.probabilities.is_empty() {
                self.control.learn(drafted, accepted, price.row);
            } else {
                self.model_control.learn(drafted, accepted, price.model);
            }
            // Of those after the first wrong one nothing is known.
            for (index, probability) in self.probabilities.drain(..).enumerate().take(accepted + 1) {
                self.calibration.learn(probability, index < accepted);
            }
        }
        self.draft.clear();
        drafted - accepted
    }

    /// What came of all drafts so far.
    pub(crate) fn total(&self) -> Drafts {
        self.total
    }
}
