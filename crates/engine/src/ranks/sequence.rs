//! One request under way, as rank 0 sees it.

use std::time::Instant;

use crate::guide::{Guide, Verdict};
use crate::ranks::answers::Answer;
use crate::ranks::embedding::Embedding;
use crate::ranks::plan::Wanted;
use crate::ranks::speculation::{Guess, Outcome, Price, Speculation, Wish};
use crate::request::{Drafts, FinishReason, Pooling, Request, TokenInfo};
use crate::sampler::{LogProbabilities, Sampler};

/// A request in a slot of the KV cache.
pub(crate) struct Sequence {
    pub(crate) id: u64,
    pub(crate) slot: usize,
    /// Its prompt has moved to `text`.
    request: Request,
    /// The prompt and what was generated, the first `prompt` tokens of which are the prompt.
    text: Vec<u32>,
    prompt: usize,
    /// Tokens of the text to be evaluated before the next one is drawn: the prompt, or all after it had to make room.
    target: usize,
    sampler: Sampler,
    /// Most tokens to generate.
    most: usize,
    /// Of these, tokens that were in the KV cache already, and that steps have taken since.
    reused: usize,
    taken: usize,
    /// What is known of the prompt's tokens, where asked for.
    evaluated: Vec<TokenInfo>,
    generated: usize,
    /// The token drawn last, with which it goes on, and a draft of those that may follow.
    pending: Vec<u32>,
    /// Answers to them that were heard, and whether the rest of them is of no use as what was drawn is not what was drafted.
    heard: usize,
    astray: bool,
    speculation: Option<Speculation>,
    embedding: Option<Embedding>,
    started: Instant,
    /// When the prompt was done and the first token was drawn.
    answered: Option<Instant>,
}

/// What an answer of the ranks has led to.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// The prompt is done: its tokens, where asked for, and how many of them came from the KV cache.
    pub(crate) prompt: Option<(Vec<TokenInfo>, usize)>,
    /// A token was drawn.
    pub(crate) token: Option<TokenInfo>,
    /// All answers about its tokens of the step were heard, so that it can go on.
    pub(crate) ready: bool,
    /// The sequence has ended.
    pub(crate) finish: Option<FinishReason>,
}

impl Sequence {
    /// A request in `slot`, which holds the first `reused` tokens of its prompt. Drafts have at most `draft_max` tokens.
    pub(crate) fn new(
        id: u64,
        mut request: Request,
        (slot, reused): (usize, usize),
        (vocabulary, context, draft_max): (usize, usize, usize),
    ) -> Self {
        let room = context.saturating_sub(request.prompt.len());
        let most = request.max_tokens.unwrap_or(usize::MAX).min(room);
        let sampler = Sampler::new(&request, vocabulary, most);
        let speculation =
            (draft_max > 0 && most > 1).then(|| Speculation::new(&request.prediction, &request.prompt, draft_max));
        let embedding = request.embed.map(|pooling| Embedding::new(pooling, request.prompt.len()));
        let text = std::mem::take(&mut request.prompt);
        Self {
            id,
            slot,
            prompt: text.len(),
            target: text.len(),
            text,
            sampler,
            most,
            reused,
            taken: 0,
            evaluated: Vec::new(),
            generated: 0,
            pending: Vec::with_capacity(1 + draft_max),
            heard: 0,
            astray: false,
            speculation,
            embedding,
            started: Instant::now(),
            answered: None,
            request,
        }
    }

    /// From now on its tokens are by a constraint.
    pub(crate) fn follow(&mut self, guide: Guide) {
        self.sampler.follow(guide);
    }

    /// Goes on in `slot` after it had to make room for others; the slot holds the first `reused` tokens of its text.
    pub(crate) fn resume(&mut self, (slot, reused): (usize, usize)) {
        (self.slot, self.reused, self.taken) = (slot, reused, 0);
        self.target = self.text.len();
        self.pending.clear();
        (self.heard, self.astray) = (0, false);
        // What was known of a prompt that was not done has to be found out again.
        self.evaluated.clear();
        self.embedding = self.request.embed.map(|pooling| Embedding::new(pooling, self.prompt));
    }

    /// All that it has to evaluate when it is resumed, and how many tokens of it may be in the KV cache already.
    pub(crate) fn to_resume(&self) -> (&[u32], usize) {
        let again = self.answered.is_none() && Self::needs_all(&self.request);
        (&self.text, if again { 0 } else { self.text.len() - 1 })
    }

    /// How many tokens its text and `other` have in common at the beginning.
    pub(crate) fn common_beginning(&self, other: &[u32]) -> usize {
        self.text.iter().zip(other).take_while(|(a, b)| a == b).count()
    }

    /// How urgent it is: smaller numbers are more urgent.
    pub(crate) fn priority(&self) -> i32 {
        self.request.priority
    }

    /// Whether something is wanted of each token of the prompt.
    fn needs_all(request: &Request) -> bool {
        // A mean is one of all tokens.
        request.prompt_logprobs.is_some() || request.embed == Some(Pooling::Mean)
    }

    /// How many tokens at the beginning of a request's prompt need not be evaluated if they are in the KV cache. The last
    /// one always is: what follows it is wanted.
    pub(crate) fn reusable(request: &Request) -> usize {
        if Self::needs_all(request) { 0 } else { request.prompt.len().saturating_sub(1) }
    }

    /// Whether candidates do not suffice to draw its tokens.
    pub(crate) fn wants_all_logits(&self) -> bool {
        !matches!(self.sampler.wanted(), Wanted::Best(_))
    }

    /// Tokens that have to be evaluated before the next one is drawn.
    pub(crate) fn prompt_left(&self) -> usize {
        self.target - self.reused - self.taken
    }

    /// Makes a draft for the next step, of at most `most` tokens; says how many there are.
    pub(crate) fn draft(&mut self, most: usize) -> usize {
        // The last token that it generates is not evaluated any more.
        let most = most.min(self.most - self.generated - 1);
        if let Some(speculation) = &mut self.speculation {
            self.pending.extend_from_slice(speculation.draft(most));
        }
        self.pending.len() - 1
    }

    /// What the draft model is to draft for the next step, at most `most` tokens at this price, if it is.
    pub(crate) fn wish(&self, most: usize, price: Price) -> Option<Wish<'_>> {
        let most = most.min(self.most - self.generated - 1);
        let (most, calibration) = self.speculation.as_ref()?.wish(most);
        (most > 0).then(|| Wish::new(self.slot, &self.text, (most, calibration), price))
    }

    /// Takes guesses of the draft model, of which the first `drafted` are the draft for the next step.
    pub(crate) fn take_guesses(&mut self, guesses: &[Guess], drafted: usize) {
        if let Some(speculation) = &mut self.speculation {
            self.pending.extend_from_slice(speculation.take_guesses(guesses, drafted));
        }
    }

    /// How many tokens the draft for the next step has.
    pub(crate) fn drafted(&self) -> usize {
        self.pending.len().saturating_sub(1)
    }

    /// The draft does not fit into the step after all.
    pub(crate) fn retract(&mut self) {
        self.pending.truncate(1);
        self.speculation.iter_mut().for_each(Speculation::retract);
    }

    /// The step is over, in which drafts had this price: says what came of its draft.
    pub(crate) fn settle(&mut self, price: Price) -> Outcome {
        self.speculation.as_mut().map_or_else(Outcome::default, |speculation| speculation.settle(price))
    }

    /// The last `count` tokens before the one that was drawn last, which is not evaluated yet.
    pub(crate) fn before_last(&self, count: usize) -> &[u32] {
        let end = self.text.len() - 1;
        &self.text[end - count..end]
    }

    /// What came of all drafts.
    pub(crate) fn drafts(&self) -> Drafts {
        self.speculation.as_ref().map_or_else(Drafts::default, Speculation::total)
    }

    /// The next `count` tokens that a step takes (after the prompt the last one and the draft), and what is wanted of them.
    pub(crate) fn take(&mut self, count: usize) -> (&[u32], Wanted) {
        let left = self.prompt_left();
        if left == 0 {
            let wanted = match self.sampler.wanted() {
                wanted if self.pending.len() == 1 => wanted,
                Wanted::Best(count) => Wanted::EachBest(count),
                _ => Wanted::All,
            };
            return (&self.pending, wanted);
        }
        let first = self.reused + self.taken;
        self.taken += count;
        let logprobs = self.request.prompt_logprobs.filter(|_| self.answered.is_none());
        let wanted = match (logprobs, self.request.embed) {
            (_, Some(Pooling::Mean)) => Wanted::Hidden,
            (_, Some(Pooling::Last | Pooling::Ranking)) => {
                if count == left {
                    Wanted::LastHidden
                } else {
                    Wanted::Nothing
                }
            }
            (Some(_), None) => Wanted::All,
            (None, None) if count == left => self.sampler.wanted(),
            (None, None) => Wanted::Nothing,
        };
        (&self.text[first..first + count], wanted)
    }

    /// Hears the hidden states of tokens of its prompt, `[tokens, width]`. Returns the embedding once it is complete, with
    /// which the sequence has ended, and how many tokens came from the KV cache.
    pub(crate) fn hear_hidden(&mut self, hidden: &[f32], width: usize) -> Option<(Vec<f32>, usize)> {
        let embedding = self.embedding.as_mut()?.hear(hidden, width)?;
        self.answered = Some(Instant::now());
        Some((embedding, self.reused))
    }

    /// Goes on with what the ranks say of a token.
    pub(crate) fn hear(&mut self, answer: Answer<'_>, end_tokens: &[u32]) -> Outgoing {
        let mut outgoing = Outgoing::default();
        if self.answered.is_none() {
            if let (Some(count), Answer::Whole(logits)) = (self.request.prompt_logprobs, &answer)
                && self.knows_prompt(logits, count)
            {
                return outgoing;
            }
            outgoing.prompt = Some((std::mem::take(&mut self.evaluated), self.reused));
            if self.most == 0 {
                self.answered = Some(Instant::now());
                outgoing.finish = Some(FinishReason::Length);
                return outgoing;
            }
        }
        // Answers about a prompt are all but one heard above.
        self.heard += 1;
        let last = self.heard >= self.pending.len();
        outgoing.ready = last;
        if self.astray {
            self.begin_anew(last);
            return outgoing;
        }
        let token = self.draw(answer);
        let verdict = self.sampler.verdict();
        if verdict == Verdict::Broken {
            self.astray = true;
            outgoing.finish = Some(FinishReason::ConstraintFailed);
            return outgoing;
        }
        self.answered.get_or_insert_with(Instant::now);
        self.generated += 1;
        self.astray = !self.speculation.as_mut().is_some_and(|speculation| speculation.hear(token.id));
        self.text.push(token.id);
        if verdict == Verdict::Complete || !self.request.ignore_end && end_tokens.contains(&token.id) {
            outgoing.finish = Some(FinishReason::Stop);
        } else if self.generated == self.most {
            outgoing.finish = Some(FinishReason::Length);
        }
        self.astray |= outgoing.finish.is_some();
        self.begin_anew(last && outgoing.finish.is_none());
        outgoing.token = Some(token);
        outgoing
    }

    /// Goes on with the token drawn last, if all answers were heard.
    fn begin_anew(&mut self, last: bool) {
        if last {
            self.pending.clear();
            self.pending.extend(self.text.last());
            (self.heard, self.astray) = (0, false);
        }
    }

    /// Adds what logits say of the next token of the prompt. False if there is none: they are those of its last token.
    fn knows_prompt(&mut self, logits: &[f32], count: usize) -> bool {
        let prompt = &self.text[..self.prompt];
        if self.evaluated.is_empty() {
            // Nothing comes before the first token to predict it.
            self.evaluated.push(TokenInfo { id: prompt[0], logprob: None, top: Vec::new() });
        }
        let Some(&id) = prompt.get(self.evaluated.len()) else { return false };
        let logprobs = LogProbabilities::new(logits);
        self.evaluated.push(TokenInfo { id, logprob: Some(logprobs.of(id)), top: logprobs.top(count) });
        true
    }

    fn draw(&mut self, answer: Answer<'_>) -> TokenInfo {
        let plain = |id| TokenInfo { id, logprob: None, top: Vec::new() };
        match (answer, self.request.logprobs) {
            (Answer::Best(best), _) => plain(self.sampler.sample_best(best)),
            (Answer::Whole(logits), None) => plain(self.sampler.sample(logits)),
            (Answer::Whole(logits), Some(count)) => {
                // Log-probabilities are those of the model, so they are taken before penalties change the logits.
                let before = LogProbabilities::new(logits);
                let (normalizer, top) = (before.normalizer(), before.top(count));
                let raw = logits.to_vec();
                let id = self.sampler.sample(logits);
                TokenInfo { id, logprob: Some(raw[id as usize] - normalizer), top }
            }
        }
    }

    /// Milliseconds up to the first token, and since then.
    pub(crate) fn times(&self) -> (f64, f64) {
        let milliseconds = |duration: std::time::Duration| duration.as_secs_f64() * 1000.0;
        let answered = self.answered.unwrap_or(self.started);
        (
            milliseconds(answered - self.started),
            milliseconds(self.answered.map_or(Default::default(), |at| at.elapsed())),
        )
    }
}
