//! A small model that guesses what a large one will say. Rank 0 has all of it.

use model::{Alone, Blueprint, Gguf, LOGIT_ROWS, ModelError, Placement, Shard, ShardOptions, Stretch};

use crate::candidates::{Scored, most_likely};
use crate::ranks::member::RankError;
use crate::ranks::protocol::{Job, Weights};
use crate::ranks::speculation::calibration::Calibration;

/// The metadata that holds the text of each token.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// A draft model with a KV cache of its own, whose slots are those of the large one.
pub(crate) struct DraftModel {
    shard: Shard,
    /// Entries of its vocabulary, and how many of them, from the first on, the large model has too.
    vocabulary: usize,
    common: usize,
    context: usize,
    step_tokens: usize,
    /// The tokens whose keys and values each slot holds.
    slots: Vec<Vec<u32>>,
    /// `[LOGIT_ROWS, vocabulary]`.
    logits: Vec<f32>,
    /// The step that is being put together.
    stretches: Vec<Stretch>,
    tokens: Vec<u32>,
}

/// A sequence for which a draft is wanted.
pub(crate) struct Wish<'a> {
    pub(crate) slot: usize,
    /// All its tokens so far.
    pub(crate) known: &'a [u32],
    /// Most tokens to draft.
    pub(crate) most: usize,
    /// What the draft model's probabilities mean.
    pub(crate) calibration: &'a Calibration,
    /// What comes of it: tokens and their probabilities, of which the last one should be right, and with it all before it, with
    /// probability `least`.
    pub(crate) draft: Vec<Guess>,
    least: f64,
    likely: f64,
    /// Whether a further token may be drafted.
    goes_on: bool,
}

/// A drafted token, and how likely the draft model finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Guess {
    pub(crate) id: u32,
    pub(crate) probability: f64,
}

/// What a sequence wants to have drafted: all its tokens so far, how many more at most, and what probabilities mean.
pub(crate) type Wanted<'a> = (&'a [u32], usize, &'a Calibration);

impl<'a> Wish<'a> {
    /// The wish of the sequence in `slot`, with drafts that are right with probability `least`.
    pub(crate) fn new(slot: usize, (known, most, calibration): Wanted<'a>, least: f64) -> Self {
        Self { slot, known, most, calibration, draft: Vec::new(), least, likely: 1.0, goes_on: false }
    }

    /// Takes what the model says of the next token.
    fn hear(&mut self, logits: &[f32], common: usize) {
        self.goes_on = false;
        let Some(Scored { id, logit }) = most_likely(&logits[..common], 0) else { return };
        let probability = 1.0 / f64::from(logits.iter().map(|other| (other - logit).exp()).sum::<f32>());
        self.likely *= self.calibration.expected(probability);
        if self.likely > self.least {
            self.draft.push(Guess { id, probability });
            self.goes_on = self.draft.len() < self.most;
        }
    }
}

impl DraftModel {
    /// Loads the draft model in `file` for a group that does `job` with the model in `large`.
    ///
    /// # Errors
    /// When it cannot be loaded, or its tokens are not those of the large model.
    pub(crate) fn load(file: &Gguf, large: &Gguf, job: &Job) -> Result<Self, RankError> {
        check_same_tokens(file, large)?;
        let (blueprint, large) = (Blueprint::from_gguf(file)?, Blueprint::from_gguf(large)?);
        let options = ShardOptions {
            threads: job.threads,
            slots: job.slots,
            context: job.context,
            step_tokens: job.step_tokens.saturating_add(job.slots),
            kv_type: job.kv_type,
        };
        let mut shard = Shard::load(file, &blueprint, &Placement::whole(blueprint.layers.len()), options)?;
        if job.weights != Weights::File {
            shard.pack(&mut |_| {})?;
        }
        shard.check_kernels()?;
        Ok(Self {
            shard,
            vocabulary: blueprint.vocabulary,
            common: blueprint.vocabulary.min(large.vocabulary),
            context: job.context.min(blueprint.context),
            step_tokens: options.step_tokens,
            slots: vec![Vec::new(); job.slots],
            logits: vec![0.0; LOGIT_ROWS * blueprint.vocabulary],
            stretches: Vec::new(),
            tokens: Vec::new(),
        })
    }

    /// Makes drafts as wished. What the draft model has not seen yet of the sequences it evaluates first, at most `room` tokens
    /// and one of each; those of which it has not seen all get no draft yet.
    ///
    /// # Errors
    /// Those of the model.
    pub(crate) fn draft(&mut self, wishes: &mut [Wish<'_>], room: usize) -> Result<(), ModelError> {
        let mut left = room.saturating_add(wishes.len()).min(self.step_tokens);
        wishes.sort_by_cached_key(|wish| wish.known.len() - self.held(wish));
        for wish in &mut *wishes {
            let held = self.held(wish);
            let rest = &wish.known[held..];
            let fits =
                wish.known.len() + wish.most <= self.context && rest.iter().all(|&id| (id as usize) < self.common);
            let count = if fits && wish.most > 0 { rest.len().min(left) } else { 0 };
            self.slots[wish.slot].truncate(held);
            self.add(wish.slot, &rest[..count]);
            left -= count;
            wish.goes_on = count > 0;
        }
        // Those that were not seen as a whole take part in this step and leave then.
        while wishes.iter().any(|wish| wish.goes_on) {
            self.run(wishes)?;
            for wish in wishes.iter().filter(|wish| wish.goes_on) {
                let last: Vec<u32> = wish.draft.last().iter().map(|guess| guess.id).collect();
                self.add(wish.slot, &last);
            }
        }
        Ok(())
    }

    /// Tokens of a sequence that need not be evaluated again. The last one always is: what follows it is wanted.
    fn held(&self, wish: &Wish<'_>) -> usize {
        let held = self.slots[wish.slot].iter().zip(wish.known);
        held.take_while(|(held, known)| held == known).count().min(wish.known.len() - 1)
    }

    /// Adds tokens of a sequence to the step.
    fn add(&mut self, slot: usize, tokens: &[u32]) {
        if !tokens.is_empty() {
            let held = &mut self.slots[slot];
            self.stretches.push(Stretch { slot, first_position: held.len(), tokens: tokens.len() });
            held.extend_from_slice(tokens);
            self.tokens.extend_from_slice(tokens);
        }
    }

    /// Runs the step. Wishes hear of the tokens that follow.
    fn run(&mut self, wishes: &mut [Wish<'_>]) -> Result<(), ModelError> {
        self.shard.embed(&self.tokens);
        self.shard.run_layers(&self.stretches, &mut Alone)?;
        let mut end = 0;
        let mut asked = Vec::new();
        for stretch in self.stretches.drain(..) {
            end += stretch.tokens;
            let place = wishes.iter().position(|wish| wish.slot == stretch.slot);
            let Some(place) = place.filter(|&place| wishes[place].goes_on) else { continue };
            // Of a sequence of which more is to be seen nothing is known yet.
            wishes[place].goes_on = self.slots[stretch.slot].len() >= wishes[place].known.len();
            if wishes[place].goes_on {
                asked.push((end - 1, place));
            }
        }
        self.tokens.clear();
        for asked in asked.chunks(LOGIT_ROWS) {
            let rows: Vec<usize> = asked.iter().map(|&(row, _)| row).collect();
            self.shard.logits(&rows, &mut self.logits, self.vocabulary);
            for (&(_, place), logits) in asked.iter().zip(self.logits.chunks_exact(self.vocabulary)) {
                wishes[place].hear(logits, self.common);
            }
        }
        Ok(())
    }
}

/// A draft in other tokens would mean something else. One of both vocabularies may have further entries at its end.
fn check_same_tokens(file: &Gguf, large: &Gguf) -> Result<(), RankError> {
    let (Some(own), Some(others)) = (file.metadata().find_array_str(TOKENS)?, large.metadata().find_array_str(TOKENS)?)
    else {
        return Err(RankError::Protocol("the draft model has no vocabulary to compare".to_owned()));
    };
    let different = own.iter().zip(others.iter()).position(|(own, other)| own != other);
    different.map_or(Ok(()), |id| {
        let [own, other] = [own, others].map(|tokens| tokens.get(id).unwrap_or_default());
        let path = file.metadata().file().display();
        Err(RankError::Protocol(format!(
            "the draft model {path} has another vocabulary: its token {id} is {own:?}, that of the model is {other:?}; \
             choose a smaller model of the same family"
        )))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kernels::KvType;

    use super::*;
    use crate::ranks::layout::Layout;
    use crate::ranks::process::model_bytes;

    fn golden(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
    }

    fn open(name: &str) -> Gguf {
        Gguf::open(&golden(&format!("{name}.gguf"))).unwrap()
    }

    fn load(name: &str) -> Result<DraftModel, RankError> {
        let large = open("tiny-llama-q4_1");
        let job = Job {
            model: String::new(),
            path: String::new(),
            model_bytes: model_bytes(&large),
            layout: Layout { tensor: 1, pipeline: 1, shares: vec![1.0] },
            threads: 1,
            slots: 2,
            context: 120,
            step_tokens: 16,
            token_latency_ms: None,
            draft_max: 15,
            draft_model: None,
            draft_price: None,
            crowded: true,
            end_tokens: Vec::new(),
            kv_type: KvType::F32,
            weights: Weights::Auto,
        };
        DraftModel::load(&open(name), &large, &job)
    }

    /// The golden prompt, and what follows it.
    fn greedy() -> (Vec<u32>, Vec<u32>) {
        let golden = std::fs::read(golden("tiny-llama.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
        let read = |name: &str| serde_json::from_value(golden["greedy"][name].clone()).unwrap();
        (read("prompt"), read("tokens"))
    }

    /// What is drafted for sequences `(slot, known, most)` where `room` tokens may be evaluated of what was not seen.
    fn drafts(model: &mut DraftModel, wanted: &[(usize, &[u32], usize)], room: usize) -> Vec<Vec<u32>> {
        let calibration = Calibration::default();
        let wish = |&(slot, known, most)| Wish::new(slot, (known, most, &calibration), 0.0);
        let mut wishes: Vec<_> = wanted.iter().map(wish).collect();
        model.draft(&mut wishes, room).unwrap();
        wishes.sort_by_key(|wish| wish.slot);
        wishes.iter().map(|wish| wish.draft.iter().map(|guess| guess.id).collect()).collect()
    }

    #[test]
    fn drafts_are_what_the_draft_model_would_say() {
        let mut model = load("tiny-llama").unwrap();
        let (mut known, answer) = greedy();
        // The prompt is seen piece by piece.
        assert_eq!(drafts(&mut model, &[(1, &known, 5)], 14), [[0; 0]]);
        assert_eq!(drafts(&mut model, &[(1, &known, 5)], 14), [&answer[..5]]);
        // Another sequence takes part; of the first all is right but one token, which is taken back.
        known.extend(&answer[..3]);
        let other = [&known[..], &answer[3..9]].concat();
        let both = drafts(&mut model, &[(1, &known, 4), (0, &other, 2)], 100);
        assert_eq!(both, [vec![], answer[3..7].to_vec()], "the second has more than fits into a step");
        known.push(answer[3] + 1);
        assert_ne!(drafts(&mut model, &[(1, &known, 4)], 16), [&answer[4..8]]);
        known.pop();
        let both = drafts(&mut model, &[(1, &known, 4), (0, &other, 2)], 100);
        assert_eq!(both, [&answer[9..11], &answer[3..7]]);
    }

    #[test]
    fn unlikely_tokens_and_those_beyond_the_context_are_not_drafted() {
        let mut model = load("tiny-llama").unwrap();
        let (known, _) = greedy();
        let calibration = Calibration::default();
        let mut wish = [Wish::new(0, (&known, 5, &calibration), 1.0)];
        for _ in 0..2 {
            model.draft(&mut wish, 16).unwrap();
            assert!(wish[0].draft.is_empty());
        }
        let long = vec![5; 118];
        for (most, drafted) in [(3, 0), (2, 2)] {
            let mut draft = Vec::new();
            for _ in 0..8 {
                draft = drafts(&mut model, &[(0, &long, most)], 16);
            }
            assert_eq!(draft[0].len(), drafted);
        }
        assert_eq!(drafts(&mut model, &[(0, &[999_999], 3)], 16), [[0; 0]]);
    }

    #[test]
    fn another_vocabulary_is_refused() {
        let error = load("tokenizer-gpt-2").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("has another vocabulary: its token 0"), "{error}");
    }
}
