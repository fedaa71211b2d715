//! Makes the drafts of a step, and knows what they cost: no clock, only the times that it is told.

use std::time::Duration;

use model::ModelError;

use crate::ranks::schedule::Share;
use crate::ranks::sequence::Sequence;
use crate::ranks::speculation::{Allowance, DRAFTS_MAX, DraftModel, Guess, Price, Run, StepCost, Wish};

/// Cost of a guess of the draft model as long as nothing is known, in tokens of the large one.
const UNKNOWN: f64 = 0.2;

/// Where drafts come from, and what they cost.
pub(crate) struct Drafting {
    model: Option<DraftModel>,
    /// What drafted tokens are taken to cost, if that is not to be found out.
    price: Option<f64>,
    step: StepCost,
    /// What steps of the draft model cost, and how many sequences the latest one was for.
    model_step: StepCost,
    guessing: usize,
    /// Whether it pays to have the draft model see what it has not seen yet, all sequences taken together.
    allowance: Allowance,
}

impl Drafting {
    /// Drafts, also by a draft model if there is one. `price` is what drafted tokens are taken to cost, if that is not to be
    /// found out.
    pub(crate) fn new(model: Option<DraftModel>, price: Option<f64>) -> Self {
        let (step, model_step) = (StepCost::default(), StepCost::default());
        Self { model, price, step, model_step, guessing: 1, allowance: Allowance::default() }
    }

    /// Makes drafts for those of `sequences` that go on in a step with `shares`. The draft model may evaluate `room` tokens that
    /// it has not seen yet. Returns how long drafts took, but for those.
    ///
    /// # Errors
    /// Those of the draft model.
    pub(crate) fn draft(
        &mut self,
        sequences: &mut [Sequence],
        shares: &[Share],
        room: usize,
    ) -> Result<Duration, ModelError> {
        let (mut left, mut going_on) = (DRAFTS_MAX, 0);
        for share in shares {
            let Some(sequence) = sequences.iter_mut().find(|sequence| goes_on(sequence, share)) else { continue };
            left -= sequence.draft(left);
            going_on += 1;
        }
        self.allowance.pass(going_on);
        if going_on == 0 || self.model.is_none() {
            return Ok(Duration::ZERO);
        }
        let price = self.price(going_on);
        // Those of which it has seen all go on as long as that pays for each: what it took to see it is spent.
        let room = if self.price.is_some() || self.allowance.is_open() { room } else { 0 };
        let runs = self.guess(sequences, shares, (left / going_on, price), room)?;
        Ok(self.learn_runs(&runs, going_on))
    }

    /// Has the draft model draft up to `most` tokens for each sequence without a draft. Returns its steps.
    fn guess(
        &mut self,
        sequences: &mut [Sequence],
        shares: &[Share],
        (most, price): (usize, Price),
        room: usize,
    ) -> Result<Vec<Run>, ModelError> {
        let Some(model) = &mut self.model else { return Ok(Vec::new()) };
        let takes_part = |sequence: &&Sequence| shares.iter().any(|share| goes_on(sequence, share));
        let wishes = sequences.iter().filter(takes_part).filter_map(|sequence| sequence.wish(most, price));
        let mut wishes: Vec<Wish<'_>> = wishes.collect();
        self.guessing = wishes.len().max(1);
        let runs = model.draft(&mut wishes, room)?;
        let guesses: Vec<(usize, Vec<Guess>, usize)> =
            wishes.into_iter().map(|wish| (wish.slot, wish.guesses, wish.drafted)).collect();
        for (slot, guesses, drafted) in guesses {
            let sequence = sequences.iter_mut().find(|sequence| sequence.slot == slot);
            sequence.into_iter().for_each(|sequence| sequence.take_guesses(&guesses, drafted));
        }
        Ok(runs)
    }

    /// Notes how long the draft model took where so many sequences go on. Returns how long, but for what it had not seen: that
    /// is the price of a sequence, not of its drafts.
    fn learn_runs(&mut self, runs: &[Run], sequences: usize) -> Duration {
        let all: Duration = runs.iter().map(|run| run.took).sum();
        if let Some(token) = self.step.seconds_per_token(sequences) {
            self.allowance.learn(-all.as_secs_f64() / token);
        }
        let drafting = runs.iter().filter(|run| !run.catches_up);
        drafting.clone().for_each(|run| self.model_step.learn(run.tokens, run.took.as_secs_f64()));
        drafting.map(|run| run.took).sum()
    }

    /// A step without prompts over so many tokens took so long, without its drafts.
    pub(crate) fn learn_step(&mut self, tokens: usize, seconds: f64) {
        self.step.learn(tokens, seconds);
    }

    /// Drafts of the draft model have gained so many tokens, less what their rows have cost.
    pub(crate) fn learn_gain(&mut self, gain: f64) {
        self.allowance.learn(gain);
    }

    /// What drafts cost where `sequences` go on.
    pub(crate) fn price(&self, sequences: usize) -> Price {
        if let Some(price) = self.price {
            return Price { row: price, guess: 0.0 };
        }
        let seconds = self.model_step.seconds_per_token(self.guessing);
        let guess = seconds.zip(self.step.seconds_per_token(sequences)).map(|(own, other)| own / other);
        Price { row: self.step.price(sequences), guess: guess.unwrap_or(UNKNOWN) }
    }
}

/// Whether a share is one with which a sequence goes on after its prompt.
fn goes_on(sequence: &Sequence, share: &Share) -> bool {
    sequence.slot == share.slot && sequence.prompt_left() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tokens: usize, milliseconds: u64, catches_up: bool) -> Run {
        Run { tokens, took: Duration::from_millis(milliseconds), catches_up }
    }

    #[test]
    fn guesses_cost_the_time_of_the_draft_model() {
        let mut drafting = Drafting::new(None, None);
        assert!((drafting.price(1).guess - UNKNOWN).abs() < 1e-9);
        for tokens in [1, 2, 5, 1, 3] {
            drafting.learn_step(tokens, 0.010 + 0.002 * tokens as f64);
            // To catch up with a prompt takes long, and says nothing of the price of drafts.
            let took = drafting.learn_runs(&[run(300, 400, true), run(1, 3, false), run(2, 4, false)], 1);
            assert_eq!(took, Duration::from_millis(7));
        }
        let Price { row, guess } = drafting.price(1);
        assert!((row - 2.0 / 12.0).abs() < 1e-6, "{row}");
        assert!((guess - 3.0 / 12.0).abs() < 1e-6, "{guess}");
        drafting.guessing = 4;
        let guess = drafting.price(4).guess;
        assert!((guess - 6.0 / 18.0).abs() < 1e-6, "{guess}");
    }

    #[test]
    fn time_spent_in_vain_is_paid_for() {
        let mut drafting = Drafting::new(None, None);
        drafting.learn_step(1, 0.010);
        let mut tries = 0;
        while drafting.allowance.is_open() {
            drafting.learn_runs(&[run(1, 20, false)], 1);
            tries += 1;
        }
        assert_eq!(tries, 3, "two tokens are lost each time");
        drafting = Drafting::new(None, None);
        drafting.learn_step(1, 0.010);
        for _ in 0..100 {
            drafting.learn_runs(&[run(1, 20, false)], 1);
            drafting.learn_gain(2.1);
        }
        assert!(drafting.allowance.is_open());
        // A prompt that was seen for nothing is a loss too.
        drafting.learn_runs(&[run(5000, 2000, true)], 1);
        assert!(!drafting.allowance.is_open());
    }
}
