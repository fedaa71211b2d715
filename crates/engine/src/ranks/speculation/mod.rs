//! Guesses at what comes next, so that one step can take several tokens of a sequence.
//!
//! A step over a few tokens costs little more than one over a single token, as both read all weights. So a sequence goes on
//! with its last token and a draft of those that may follow. From the first row the next token is drawn as ever; where it is
//! the first one of the draft, the second row is what would have been computed for it, and so on up to the first token that
//! is another one. Each token is drawn from the logits, and with the random number, with which it would have been drawn
//! without a draft: so not only their distribution (rejection sampling, Leviathan and others 2023) but every token is the same.

mod allowance;
mod calibration;
mod control;
mod cost;
mod draft_model;
mod lookup;

pub(crate) use allowance::Allowance;
pub(crate) use calibration::Calibration;
use control::Control;
pub(crate) use cost::StepCost;
pub(crate) use draft_model::{DraftModel, Run, Wish};
use lookup::Lookup;

use crate::request::Drafts;

/// Tokens that all drafts of a step have together, at most.
pub(crate) const DRAFTS_MAX: usize = 32;

/// What drafts cost, in tokens that would have been generated in the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Price {
    /// A drafted token: a further row of the step.
    pub(crate) row: f64,
    /// A guess of the draft model, whether it becomes a part of the draft or not.
    pub(crate) guess: f64,
}

/// A token that the draft model takes for the next one, and how likely it finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Guess {
    pub(crate) id: u32,
    pub(crate) probability: f64,
}

/// What came of the draft of a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Outcome {
    /// Tokens of it that were right.
    pub(crate) right: usize,
    /// Tokens gained by one of the draft model, less what its rows have cost.
    pub(crate) gain: f64,
}

/// The drafts of one sequence.
pub(crate) struct Speculation {
    lookup: Lookup,
    /// Of drafts that are found, and of those of the draft model.
    control: Control,
    model_control: Control,
    calibration: Calibration,
    /// Draft of the step under way.
    draft: Vec<u32>,
    /// What the draft model has guessed for it; the last guess may be none that it was worth to draft.
    guesses: Vec<Guess>,
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
            model_control: Control::new(most),
            calibration: Calibration::default(),
            draft: Vec::with_capacity(most),
            guesses: Vec::new(),
            accepted: 0,
            total: Drafts::default(),
        }
    }

    /// A draft of at most `most` tokens for the next step, which may be empty.
    pub(crate) fn draft(&mut self, most: usize) -> &[u32] {
        self.accepted = 0;
        self.draft.clear();
        self.guesses.clear();
        let length = self.control.length().min(most);
        if length > 0 {
            self.lookup.propose(length, &mut self.draft);
        }
        self.control.pass();
        self.model_control.pass();
        &self.draft
    }

    /// How many tokens, of at most `most`, the draft model should draft for the next step: none where a draft was found. And
    /// what its probabilities mean.
    pub(crate) fn wish(&self, most: usize) -> (usize, &Calibration) {
        let length = if self.draft.is_empty() { self.model_control.length().min(most) } else { 0 };
        (length, &self.calibration)
    }

    /// Takes guesses of the draft model, of which the first `drafted` are the draft for the next step.
    pub(crate) fn take_guesses(&mut self, guesses: &[Guess], drafted: usize) -> &[u32] {
        self.draft.extend(guesses[..drafted].iter().map(|guess| guess.id));
        self.guesses.extend_from_slice(guesses);
        &self.draft
    }

    /// A token was drawn. Returns whether it is the next one of the draft.
    pub(crate) fn hear(&mut self, id: u32) -> bool {
        self.lookup.push(id);
        if let Some(guess) = self.guesses.get(self.accepted) {
            self.calibration.learn(guess.probability, guess.id == id);
        }
        let expected = self.draft.get(self.accepted) == Some(&id);
        self.accepted += usize::from(expected);
        expected
    }

    /// The step is over.
    pub(crate) fn settle(&mut self, price: Price) -> Outcome {
        let (drafted, right) = (self.draft.len(), self.accepted);
        let rows = price.row * drafted as f64;
        self.total.drafted += drafted;
        self.total.accepted += right;
        let mut outcome = Outcome { right, gain: 0.0 };
        if !self.guesses.is_empty() {
            // What was guessed in vain has taken time as well.
            self.model_control.learn(drafted, right, rows + price.guess * self.guesses.len() as f64);
            outcome.gain = right as f64 - rows;
        } else if drafted > 0 {
            self.control.learn(drafted, right, rows);
        }
        self.draft.clear();
        self.guesses.clear();
        self.accepted = 0;
        outcome
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

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price { row: 0.1, guess: 0.2 };

    fn guesses(ids: &[u32]) -> Vec<Guess> {
        ids.iter().map(|&id| Guess { id, probability: 0.5 }).collect()
    }

    #[test]
    fn what_was_guessed_in_vain_is_a_loss() {
        let mut speculation = Speculation::new(&[], &[1, 2], 15);
        let mut tries = 0;
        while speculation.wish(9).0 > 0 {
            assert!(speculation.draft(9).is_empty());
            // The guess was not worth a row, and it was wrong.
            assert!(speculation.take_guesses(&guesses(&[7]), 0).is_empty());
            assert!(!speculation.hear(100 + tries));
            assert_eq!(speculation.settle(PRICE), Outcome { right: 0, gain: 0.0 });
            tries += 1;
        }
        assert_eq!((tries, speculation.total()), (8, Drafts::default()));
        assert!(speculation.calibration.expected(0.5) < 0.2);
    }

    #[test]
    fn a_guess_that_was_not_drafted_tells_something_as_well() {
        let mut speculation = Speculation::new(&[], &[1, 2], 15);
        speculation.draft(9);
        speculation.take_guesses(&guesses(&[3, 4, 5]), 2);
        let before = speculation.calibration.expected(0.5);
        assert!(speculation.hear(3) && speculation.hear(4) && !speculation.hear(5));
        assert!(speculation.calibration.expected(0.5) > before);
        let outcome = speculation.settle(PRICE);
        assert_eq!((outcome.right, speculation.total()), (2, Drafts { drafted: 2, accepted: 2 }));
        assert!((outcome.gain - 1.8).abs() < 1e-9);
        // One that goes on without a draft, as after it had to make room, has none that was right.
        assert!(!speculation.hear(6));
        assert_eq!(speculation.settle(PRICE), Outcome::default());
    }
}
