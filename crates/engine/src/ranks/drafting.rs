//! Makes the drafts of a step, and knows what they cost: no clock, only the times that it is told.

use model::ModelError;

use crate::ranks::schedule::Share;
use crate::ranks::sequence::Sequence;
use crate::ranks::speculation::{DRAFTS_MAX, DraftModel, Guess, Price, StepCost, Wish};

/// How much the latest measurement counts.
const LATEST: f64 = 0.1;
/// Cost of a token of the draft model as long as nothing is known, in tokens of the large one.
const UNKNOWN: f64 = 0.2;

/// Where drafts come from, and what they cost.
pub(crate) struct Drafting {
    model: Option<DraftModel>,
    /// What drafted tokens are taken to cost, if that is not to be found out.
    price: Option<f64>,
    step: StepCost,
    /// Seconds that the draft model takes for a token of a draft.
    seconds: Option<f64>,
}

impl Drafting {
    /// Drafts, also by a draft model if there is one. `price` is what drafted tokens are taken to cost, if that is not to be
    /// found out.
    pub(crate) fn new(model: Option<DraftModel>, price: Option<f64>) -> Self {
        Self { model, price, step: StepCost::default(), seconds: None }
    }

    /// Makes drafts for those of `sequences` that go on in a step with `shares`. The draft model may evaluate `room` tokens of
    /// prompts that it has not seen. Returns how many tokens it has drafted.
    ///
    /// # Errors
    /// Those of the draft model.
    pub(crate) fn draft(
        &mut self,
        sequences: &mut [Sequence],
        shares: &[Share],
        room: usize,
    ) -> Result<usize, ModelError> {
        let mut left = DRAFTS_MAX;
        let takes_part = |slot| shares.iter().any(|share| share.slot == slot);
        let mut going_on: Vec<&mut Sequence> =
            sequences.iter_mut().filter(|sequence| sequence.prompt_left() == 0 && takes_part(sequence.slot)).collect();
        for sequence in &mut going_on {
            left -= sequence.draft(left);
        }
        let least = self.price(going_on.len()).model;
        let Some(model) = &mut self.model else { return Ok(0) };
        let most = left / going_on.len().max(1);
        let wanted = going_on.iter_mut().filter_map(|sequence| sequence.wish(most));
        let mut wishes: Vec<Wish<'_>> = wanted.map(|(slot, wanted)| Wish::new(slot, wanted, least)).collect();
        if wishes.is_empty() {
            return Ok(0);
        }
        model.draft(&mut wishes, room)?;
        let drafts: Vec<(usize, Vec<Guess>)> = wishes.into_iter().map(|wish| (wish.slot, wish.draft)).collect();
        for (slot, draft) in &drafts {
            going_on
                .iter_mut()
                .filter(|sequence| sequence.slot == *slot)
                .for_each(|sequence| sequence.take_draft(draft));
        }
        Ok(drafts.iter().map(|(_, draft)| draft.len()).sum())
    }

    /// The draft model took so long for so many tokens.
    pub(crate) fn learn_drafts(&mut self, tokens: usize, seconds: f64) {
        if tokens > 0 {
            let each = seconds / tokens as f64;
            self.seconds = Some(self.seconds.map_or(each, |known| known + LATEST * (each - known)));
        }
    }

    /// A step without prompts over so many tokens took so long.
    pub(crate) fn learn_step(&mut self, tokens: usize, seconds: f64) {
        self.step.learn(tokens, seconds);
    }

    /// What a drafted token costs where `sequences` go on.
    pub(crate) fn price(&self, sequences: usize) -> Price {
        if let Some(price) = self.price {
            return Price { row: price, model: price };
        }
        let row = self.step.price(sequences);
        let model = self.seconds.zip(self.step.seconds_per_token(sequences)).map(|(own, other)| own / other);
        Price { row, model: row + model.unwrap_or(UNKNOWN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_the_draft_model_cost_its_time_as_well() {
        let mut drafting = Drafting::new(None, None);
        let unknown = drafting.price(1);
        assert!((unknown.model - unknown.row - UNKNOWN).abs() < 1e-9);
        for tokens in [1, 2, 5, 1, 3] {
            drafting.learn_step(tokens, 0.010 + 0.002 * tokens as f64);
            drafting.learn_drafts(4, 0.012);
        }
        drafting.learn_drafts(0, 9.0);
        let Price { row, model } = drafting.price(1);
        assert!((row - 2.0 / 12.0).abs() < 1e-6, "{row}");
        assert!((model - row - 3.0 / 12.0).abs() < 1e-6, "{model}");
        let Price { row, model } = drafting.price(4);
        assert!((model - row - 3.0 * 4.0 / 18.0).abs() < 1e-6, "{model}");
    }
}
