//! Rank 0: runs requests over the group, step by step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fabric::ControlSender;
use model::LOGIT_ROWS;

use crate::ranks::member::{Member, RankError};
use crate::ranks::plan::{Signal, Wanted};
use crate::ranks::protocol::{FromRank, ToRank};
use crate::request::{FinishReason, Request, TokenInfo};
use crate::sampler::{LogProbabilities, Sampler};

/// How often an idle leader lets the other ranks know that it lives. Far below the fabric's deadline.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Rank 0 with its way to the front.
pub(crate) struct Leader<'a> {
    pub(crate) member: Member,
    pub(crate) control: &'a mut ControlSender,
    /// Messages from the front; closed when the front is gone.
    pub(crate) orders: &'a Receiver<ToRank>,
    /// The highest request id that the front has cancelled, set as soon as its word arrives.
    pub(crate) cancelled: &'a AtomicU64,
    /// The tokens whose keys and values are in the KV cache, in order.
    pub(crate) cached: Vec<u32>,
}

/// What one generation has come to.
struct Run {
    finish: FinishReason,
    prefill_ms: f64,
    decode_ms: f64,
}

impl Leader<'_> {
    /// Serves the front until it says to stop or goes away.
    pub(crate) fn lead(&mut self) -> Result<(), RankError> {
        loop {
            match self.orders.recv_timeout(HEARTBEAT) {
                Ok(ToRank::Generate { id, request }) => self.generate(id, &request)?,
                Ok(ToRank::Cancel { .. } | ToRank::Start) => {}
                Ok(ToRank::Stop) | Err(RecvTimeoutError::Disconnected) => return self.member.signal(Signal::Stop),
                Err(RecvTimeoutError::Timeout) => self.member.signal(Signal::Idle)?,
            }
        }
    }

    fn generate(&mut self, id: u64, request: &Request) -> Result<(), RankError> {
        self.member.signal(Signal::Begin)?;
        let run = self.run(id, request)?;
        let ranks = self.member.collect_reports()?;
        let Run { finish, prefill_ms, decode_ms } = run;
        self.tell(&FromRank::Done { id, finish, prefill_ms, decode_ms, ranks })
    }

    fn run(&mut self, id: u64, request: &Request) -> Result<Run, RankError> {
        let started = Instant::now();
        let context = self.member.job().context;
        let room = context.saturating_sub(request.prompt.len());
        let most = request.max_tokens.unwrap_or(usize::MAX).min(room);
        let vocabulary = self.member.vocabulary_size();
        let mut sampler = Sampler::new(&request.sampling, vocabulary, &request.prompt, most);
        let cancelled = Run { finish: FinishReason::Cancelled, prefill_ms: 0.0, decode_ms: 0.0 };
        if !self.prefill(id, request)? {
            return Ok(cancelled);
        }
        let mut prefill_ms = milliseconds(started);
        let mut first_token = Instant::now();
        let mut finish = FinishReason::Length;
        for generated in 1..=most {
            let token = self.draw(&mut sampler, request.logprobs);
            let token_id = token.id;
            self.tell(&FromRank::Token { id, token })?;
            if generated == 1 {
                prefill_ms = milliseconds(started);
                first_token = Instant::now();
            }
            if !request.ignore_end && self.member.job().end_tokens.contains(&token_id) {
                finish = FinishReason::Stop;
                break;
            }
            if self.is_cancelled(id) {
                finish = FinishReason::Cancelled;
                break;
            }
            if generated < most {
                self.step(&[token_id], Wanted::Last)?;
                self.member.receive_logits(0..1)?;
            }
        }
        Ok(Run { finish, prefill_ms, decode_ms: milliseconds(first_token) })
    }

    /// Evaluates the prompt, as far as it is not in the KV cache, and receives the logits of its last token. Returns
    /// whether it went to its end.
    fn prefill(&mut self, id: u64, request: &Request) -> Result<bool, RankError> {
        let prompt = &request.prompt;
        // The last token is always evaluated: its logits are wanted.
        let reusable = if request.prompt_logprobs.is_some() { 0 } else { prompt.len() - 1 };
        let same = self.cached.iter().zip(prompt).take_while(|(cached, token)| cached == token).count();
        let reused = same.min(reusable);
        self.cached.truncate(reused);
        let mut evaluated = Vec::new();
        let mut rest = &prompt[reused..];
        while !rest.is_empty() {
            if self.is_cancelled(id) {
                return Ok(false);
            }
            let (chunk, later) = rest.split_at(rest.len().min(self.member.job().step_tokens));
            match request.prompt_logprobs {
                Some(count) => {
                    self.step(chunk, Wanted::All)?;
                    self.prompt_logprobs(prompt, chunk.len(), count, &mut evaluated)?;
                }
                None if later.is_empty() => {
                    self.step(chunk, Wanted::Last)?;
                    self.member.receive_logits(chunk.len() - 1..chunk.len())?;
                }
                None => self.step(chunk, Wanted::None)?,
            }
            self.tell(&FromRank::Progress { id })?;
            rest = later;
        }
        self.tell(&FromRank::Prompt { id, tokens: evaluated, cached: reused })?;
        Ok(true)
    }

    /// Runs one step over the tokens that follow those in the KV cache.
    fn step(&mut self, tokens: &[u32], logits: Wanted) -> Result<(), RankError> {
        self.member.lead_step(self.cached.len(), tokens, logits)?;
        self.cached.extend_from_slice(tokens);
        Ok(())
    }

    /// Receives the logits of all `tokens` tokens of the step just run, and adds what they say of the prompt's tokens.
    fn prompt_logprobs(
        &mut self,
        prompt: &[u32],
        tokens: usize,
        count: usize,
        evaluated: &mut Vec<TokenInfo>,
    ) -> Result<(), RankError> {
        if evaluated.is_empty() {
            // Nothing comes before the first token to predict it.
            evaluated.push(TokenInfo { id: prompt[0], logprob: None, top: Vec::new() });
        }
        let vocabulary = self.member.vocabulary_size();
        for start in (0..tokens).step_by(LOGIT_ROWS) {
            let logits = self.member.receive_logits(start..(start + LOGIT_ROWS).min(tokens))?;
            for row in logits.chunks_exact(vocabulary) {
                // The last token's logits say nothing of the prompt but of what comes after it.
                let Some(&id) = prompt.get(evaluated.len()) else { break };
                let logprobs = LogProbabilities::new(row);
                let logprob = Some(logprobs.of(id));
                evaluated.push(TokenInfo { id, logprob, top: logprobs.top(count) });
            }
        }
        Ok(())
    }

    /// Draws a token from the logits received last.
    fn draw(&mut self, sampler: &mut Sampler, logprobs: Option<usize>) -> TokenInfo {
        let logits = self.member.last_logits();
        let Some(count) = logprobs else {
            return TokenInfo { id: sampler.sample(logits), logprob: None, top: Vec::new() };
        };
        // Log-probabilities are those of the model, so they are taken before penalties change the logits.
        let before = LogProbabilities::new(logits);
        let (normalizer, top) = (before.normalizer(), before.top(count));
        let raw = logits.to_vec();
        let id = sampler.sample(logits);
        TokenInfo { id, logprob: Some(raw[id as usize] - normalizer), top }
    }

    fn is_cancelled(&self, id: u64) -> bool {
        self.cancelled.load(Ordering::Relaxed) >= id
    }

    fn tell(&mut self, message: &FromRank) -> Result<(), RankError> {
        send(self.control, message)
    }
}

/// Sends a message to the front.
pub(crate) fn send(control: &mut ControlSender, message: &FromRank) -> Result<(), RankError> {
    let bytes = serde_json::to_vec(message).map_err(|error| RankError::Protocol(error.to_string()))?;
    Ok(control.send(&bytes)?)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
