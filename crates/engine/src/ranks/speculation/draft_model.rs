//! A small model that guesses what a large one will say. Rank 0 has all of it.

use std::time::{Duration, Instant};

use model::{Alone, Blueprint, Gguf, LOGIT_ROWS, ModelError, Placement, Shard, ShardOptions, Stretch};

use crate::candidates::{Scored, most_likely};
use crate::ranks::blocks::BLOCK;
use crate::ranks::member::RankError;
use crate::ranks::protocol::{Job, Weights};
use crate::ranks::speculation::{Calibration, Guess, Price};

/// The metadata that holds the text of each token.
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Tokens whose logits are so much smaller than the largest one have no part in its probability that counts.
const NEGLIGIBLE: f32 = 20.0;

/// A draft model with a KV cache of its own. Each slot of the large one has one here too, which holds what this model has seen
/// of any sequence that was there: tokens are compared, so it need not be told what becomes of sequences.
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
    known: &'a [u32],
    /// Most tokens to draft.
    most: usize,
    calibration: &'a Calibration,
    price: Price,
    /// What comes of it, and how many of the guesses, from the first on, are worth their rows.
    pub(crate) guesses: Vec<Guess>,
    pub(crate) drafted: usize,
    /// How likely it is that all that is drafted is right.
    likely: f64,
    /// Tokens that its slot holds, and whether a further one may be drafted.
    held: usize,
    goes_on: bool,
}

/// A step of the draft model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Run {
    pub(crate) tokens: usize,
    pub(crate) took: Duration,
    /// Whether most of its tokens were such that it had not seen yet, and not drafted ones.
    pub(crate) catches_up: bool,
}

impl<'a> Wish<'a> {
    /// The wish of the sequence in `slot`, of which all of `known` is known, for up to `most` tokens, which cost as much as
    /// `price` says and are as likely to be right as `calibration` does.
    pub(crate) fn new(
        slot: usize,
        known: &'a [u32],
        (most, calibration): (usize, &'a Calibration),
        price: Price,
    ) -> Self {
        let (guesses, drafted, likely, held, goes_on) = (Vec::new(), 0, 1.0, 0, false);
        Self { slot, known, most, calibration, price, guesses, drafted, likely, held, goes_on }
    }

    /// Takes what the model says of the next token.
    fn hear(&mut self, logits: &[f32], common: usize) {
        self.goes_on = false;
        let Some(Scored { id, logit }) = most_likely(&logits[..common], 0) else { return };
        let parts = logits.iter().filter(|&&other| other > logit - NEGLIGIBLE);
        let probability = 1.0 / f64::from(parts.map(|other| (other - logit).exp()).sum::<f32>());
        self.guesses.push(Guess { id, probability });
        self.likely *= self.calibration.expected(probability);
        // The guess itself is paid for; the next one is not.
        if self.likely > self.price.row {
            self.drafted += 1;
            self.goes_on = self.drafted < self.most && self.likely > self.price.row + self.price.guess;
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
            kv_blocks: job.slots * job.context.div_ceil(BLOCK),
            // Where all of a draft was right, its last token and the one after it have not been seen yet.
            step_tokens: job.step_tokens.saturating_add(2 * job.slots),
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

    /// Makes drafts as wished. What the model has not seen yet of the sequences it evaluates first, at most `room` tokens and two
    /// of each; those of which it has not seen all get no draft yet. Returns its steps.
    ///
    /// # Errors
    /// Those of the model.
    pub(crate) fn draft(&mut self, wishes: &mut [Wish<'_>], room: usize) -> Result<Vec<Run>, ModelError> {
        self.catch_up(wishes, room);
        let mut runs = Vec::new();
        let mut most = 2;
        // Those that were not seen as a whole take part in the first step and leave then.
        while !self.stretches.is_empty() {
            let (tokens, catches_up) = (self.tokens.len(), self.tokens.len() > most * self.stretches.len());
            let began = Instant::now();
            self.run(wishes)?;
            runs.push(Run { tokens, took: began.elapsed(), catches_up });
            for wish in wishes.iter().filter(|wish| wish.goes_on) {
                self.add(wish.slot, wish.guesses.last().map(|guess| guess.id).as_slice());
            }
            most = 1;
        }
        Ok(runs)
    }

    /// Begins a step with what was not seen yet of sequences for which a draft is wanted.
    fn catch_up(&mut self, wishes: &mut [Wish<'_>], room: usize) {
        for wish in &mut *wishes {
            self.borrow(wish.slot, wish.known);
            wish.held = held(&self.slots[wish.slot], wish.known);
        }
        wishes.sort_by_key(|wish| wish.known.len() - wish.held);
        let mut left = room.saturating_add(2 * wishes.len()).min(self.step_tokens);
        for wish in &mut *wishes {
            let rest = &wish.known[wish.held..];
            wish.most = wish.most.min(self.context.saturating_sub(wish.known.len()));
            let can_go_on = wish.most > 0 && rest.iter().all(|&id| (id as usize) < self.common);
            // A step reads all weights, which is not worth it for a few tokens after which nothing can be drafted yet.
            let most = if rest.len() <= left || left >= BLOCK.min(self.step_tokens) { rest.len().min(left) } else { 0 };
            let count = if can_go_on { most } else { 0 };
            self.slots[wish.slot].truncate(wish.held);
            self.add(wish.slot, &rest[..count]);
            left -= count;
            wish.goes_on = count > 0;
        }
    }

    /// Where another slot holds more of the beginning of a text, has this one begin as that one does.
    fn borrow(&mut self, slot: usize, known: &[u32]) {
        let own = held(&self.slots[slot], known);
        if known.len() - own < BLOCK {
            return;
        }
        let others = self.slots.iter().enumerate().map(|(other, tokens)| (held(tokens, known), other));
        let Some((common, other)) = others.max().filter(|(common, _)| *common >= own + BLOCK) else { return };
        for index in own / BLOCK..common.div_ceil(BLOCK) {
            let [from, to] = [other, slot].map(|slot| self.shard.table(slot)[index]);
            self.shard.copy_kv_block(from, to);
        }
        self.slots[slot].clear();
        self.slots[slot].extend_from_slice(&known[..common]);
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
        self.tokens.clear();
        let mut end = 0;
        let mut asked = Vec::new();
        for stretch in self.stretches.drain(..) {
            end += stretch.tokens;
            let Some(place) = wishes.iter().position(|wish| wish.slot == stretch.slot) else { continue };
            // Of a sequence of which more is to be seen nothing is known yet.
            wishes[place].goes_on = self.slots[stretch.slot].len() >= wishes[place].known.len();
            if wishes[place].goes_on {
                asked.push((end - 1, place));
            }
        }
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

/// How many tokens of `known` a slot holds that need not be evaluated again. The last one always is: what follows it is wanted.
fn held(slot: &[u32], known: &[u32]) -> usize {
    let common = slot.iter().zip(known).take_while(|(held, known)| held == known).count();
    common.min(known.len().saturating_sub(1))
}

/// A draft in other tokens would mean something else. One of both vocabularies may have further entries at its end.
fn check_same_tokens(file: &Gguf, large: &Gguf) -> Result<(), RankError> {
    let path = file.metadata().file().display();
    let (Some(own), Some(others)) = (file.metadata().find_array_str(TOKENS)?, large.metadata().find_array_str(TOKENS)?)
    else {
        return Err(RankError::Protocol(format!("the draft model {path} has no vocabulary to compare")));
    };
    let Some(id) = own.iter().zip(others.iter()).position(|(own, other)| own != other) else { return Ok(()) };
    let [own, other] = [own, others].map(|tokens| tokens.get(id).unwrap_or_default());
    Err(RankError::Protocol(format!(
        "the draft model {path} has another vocabulary: its token {id} is {own:?}, that of the model is {other:?}; choose a \
         smaller model of the same family"
    )))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kernels::KvType;
    use proptest::prelude::*;

    use super::*;
    use crate::ranks::layout::Layout;
    use crate::ranks::process::model_bytes;

    /// What costs next to nothing is worth to be tried whatever it is.
    const CHEAP: Price = Price { row: 0.0, guess: 0.0 };

    fn golden(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
    }

    fn open(name: &str) -> Gguf {
        Gguf::open(&golden(&format!("{name}.gguf"))).unwrap()
    }

    fn load(name: &str, slots: usize) -> Result<DraftModel, RankError> {
        let large = open("tiny-llama-q4_1");
        let job = Job {
            model: String::new(),
            path: String::new(),
            model_bytes: model_bytes(&large),
            layout: Layout { tensor: 1, pipeline: 1, shares: vec![1.0] },
            threads: 1,
            slots,
            context: 120,
            kv_blocks: 4,
            step_tokens: 32,
            token_latency_ms: None,
            draft_max: 15,
            draft_model: None,
            draft_price: None,
            crowded: true,
            end_tokens: Vec::new(),
            kv_type: KvType::F32,
            weights: Weights::Auto,
            prompt_cache: None,
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
        let wish = |&(slot, known, most)| Wish::new(slot, known, (most, &calibration), CHEAP);
        let mut wishes: Vec<_> = wanted.iter().map(wish).collect();
        model.draft(&mut wishes, room).unwrap();
        let place = |wish: &Wish<'_>| wanted.iter().position(|wanted| wanted.0 == wish.slot);
        wishes.sort_by_key(place);
        wishes.iter().map(|wish| wish.guesses[..wish.drafted].iter().map(|guess| guess.id).collect()).collect()
    }

    /// What a model says that has seen nothing before.
    fn afresh(model: &mut DraftModel, known: &[u32], most: usize) -> Vec<u32> {
        model.slots.iter_mut().for_each(Vec::clear);
        loop {
            let draft = drafts(model, &[(0, known, most)], BLOCK).remove(0);
            if !draft.is_empty() || known.len() + most > model.context {
                return draft;
            }
        }
    }

    #[test]
    fn drafts_are_what_the_draft_model_would_say() {
        let mut model = load("tiny-llama", 2).unwrap();
        let (mut known, answer) = greedy();
        assert_eq!(drafts(&mut model, &[(1, &known, 5)], known.len() - 3), [[0; 0]]);
        assert_eq!(drafts(&mut model, &[(1, &known, 5)], known.len()), [&answer[..5]]);
        // Another sequence takes part; of the first all is right but one token, which is taken back.
        known.extend(&answer[..3]);
        let other = [&known[..], &answer[3..9]].concat();
        let both = drafts(&mut model, &[(0, &other, 2), (1, &known, 4)], 100);
        assert_eq!(both, [&answer[9..11], &answer[3..7]]);
        known.push(answer[3] + 1);
        assert_ne!(drafts(&mut model, &[(1, &known, 4)], 16), [&answer[4..8]]);
        known.pop();
        assert_eq!(drafts(&mut model, &[(0, &other, 2), (1, &known, 4)], 16), [&answer[9..11], &answer[3..7]]);
    }

    #[test]
    fn a_long_prompt_is_seen_piece_by_piece() {
        let mut model = load("tiny-llama", 1).unwrap();
        let text: Vec<u32> = (0..80).map(|token| 3 + token * 7 % 250).collect();
        let expected = afresh(&mut model, &text, 4);
        model.slots[0].clear();
        let seen: Vec<_> = [40, 10, 30, 14]
            .map(|room| (drafts(&mut model, &[(0, &text, 4)], room).remove(0), model.slots[0].len()))
            .to_vec();
        // What would be seen of it in vain is not.
        let none = Vec::new();
        assert_eq!(seen, [(none.clone(), 34), (none.clone(), 34), (none, 66), (expected, 83)]);
    }

    #[test]
    fn only_what_is_worth_it_is_drafted() {
        let mut model = load("tiny-llama", 1).unwrap();
        let (known, _) = greedy();
        let calibration = Calibration::default();
        let mut tried = |row, guess| {
            let mut wish = [Wish::new(0, &known, (5, &calibration), Price { row, guess })];
            model.draft(&mut wish, 100).unwrap();
            (wish[0].guesses.len(), wish[0].drafted)
        };
        assert_eq!(tried(1.0, 0.0), (1, 0));
        assert_eq!(tried(0.0, 1.0), (1, 1));
        assert_eq!(tried(0.0, 0.0), (5, 5));
    }

    #[test]
    fn nothing_is_drafted_beyond_the_context_or_of_unknown_tokens() {
        let mut model = load("tiny-llama", 1).unwrap();
        let long = vec![5; 118];
        assert_eq!(afresh(&mut model, &long, 2).len(), 2);
        assert_eq!(drafts(&mut model, &[(0, &long, 9)], 16)[0].len(), 2);
        assert_eq!(drafts(&mut model, &[(0, &[5; 120], 9)], 16), [[0; 0]]);
        assert_eq!(drafts(&mut model, &[(0, &[999_999], 3)], 16), [[0; 0]]);
    }

    #[test]
    fn runs_that_catch_up_are_told_apart() {
        let mut model = load("tiny-llama", 1).unwrap();
        let (known, answer) = greedy();
        let calibration = Calibration::default();
        let runs = |model: &mut DraftModel, known: &[u32]| {
            let runs = model.draft(&mut [Wish::new(0, known, (3, &calibration), CHEAP)], 100).unwrap();
            runs.iter().map(|run| (run.tokens, run.catches_up)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&mut model, &known), [(known.len(), true), (1, false), (1, false)]);
        // All was right, and one more was drawn.
        let more = [&known[..], &answer[..4]].concat();
        assert_eq!(runs(&mut model, &more), [(2, false), (1, false), (1, false)]);
    }

    #[test]
    fn what_another_slot_holds_need_not_be_seen_again() {
        let mut model = load("tiny-llama", 3).unwrap();
        let text: Vec<u32> = (0..100).map(|token| 3 + token * 7 % 250).collect();
        let other = [&text[..75], &[9, 8, 7]].concat();
        let expected = [&text, &other].map(|text| afresh(&mut model, text, 4));
        afresh(&mut model, &text, 4);
        let drafted = drafts(&mut model, &[(2, &other, 4), (1, &text, 4)], 4);
        assert_eq!(drafted, [expected[1].clone(), expected[0].clone()]);
    }

    #[test]
    fn another_vocabulary_is_refused() {
        let error = load("tokenizer-gpt-2", 1).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("has another vocabulary: its token 0"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// Sequences change, begin alike, go elsewhere, come back in other slots: the drafts of each are those of a model that
        /// has seen nothing else.
        #[test]
        fn sequences_leave_no_trace(
            events in prop::collection::vec((0_usize..3, 0_u32..3, 0_usize..100, 1_usize..12, 0_u32..3, 1_usize..5, 0_usize..40), 1..12),
        ) {
            let (mut model, mut fresh) = (load("tiny-llama", 3).unwrap(), load("tiny-llama", 1).unwrap());
            for (slot, family, common, own, variant, most, room) in events {
                let mut known: Vec<u32> = (0..common as u32).map(|token| 3 + (token * 7 + family) % 250).collect();
                known.extend((0..own as u32).map(|token| 3 + (token * 11 + variant * 5) % 250));
                let draft = drafts(&mut model, &[(slot, &known, most)], room).remove(0);
                if !draft.is_empty() {
                    prop_assert_eq!(draft, afresh(&mut fresh, &known, most));
                }
            }
        }
    }
}
