//! Requests that run at once, and how fast they were together.

use std::time::Instant;

use anyhow::{anyhow, bail};
use engine::{Completion, Event, FinishReason, Generation, Request};

use crate::commands::{decode_rate, prefill_rate};
use crate::interrupt::{self, Interrupted};
use crate::session::Session;

/// What came of requests that were submitted at the same time.
pub(super) struct Answers {
    submitted: Instant,
    sequences: Vec<Sequence>,
}

struct Sequence {
    completion: Completion,
    /// When each token arrived.
    tokens: Vec<Instant>,
}

impl Answers {
    /// Has each of the prompts answered with `length` tokens.
    pub(super) fn to(session: &Session, prompts: Vec<Vec<u32>>, length: usize) -> anyhow::Result<Self> {
        let submitted = Instant::now();
        let generations = prompts.into_iter().map(|prompt| {
            let request = Request { prompt, max_tokens: Some(length), ignore_end: true, ..Request::default() };
            Ok(session.engine.submit(request)?)
        });
        let generations = generations.collect::<anyhow::Result<Vec<_>>>()?;
        // Several generations end with the process when there is an interrupt; one that is alone is cancelled.
        let _guard = match &generations[..] {
            [alone] => Some(interrupt::cancels(alone.canceller())),
            _ => None,
        };
        let sequences = std::thread::scope(|scope| {
            let listening: Vec<_> = generations.into_iter().map(|it| scope.spawn(|| listen(it))).collect();
            let ended =
                listening.into_iter().map(|it| it.join().map_err(|_| anyhow!("a listening thread panicked"))?);
            ended.collect::<anyhow::Result<Vec<_>>>()
        })?;
        Ok(Self { submitted, sequences })
    }

    pub(super) fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.sequences.iter().map(|it| &it.completion)
    }

    /// Prompt tokens of all requests per second, until the last one had its first token.
    pub(super) fn prefill_tok_s(&self) -> f64 {
        if let [alone] = &self.sequences[..] {
            return prefill_rate(&alone.completion);
        }
        let evaluated: usize = self.completions().map(|it| it.prompt_tokens - it.cached_tokens).sum();
        let last = self.sequences.iter().filter_map(|it| it.tokens.first()).max();
        last.map_or(0.0, |last| evaluated as f64 / (*last - self.submitted).as_secs_f64().max(1e-9))
    }

    /// From the submission to the first token, the average of all requests.
    pub(super) fn first_token_ms(&self) -> f64 {
        let times = self.completions().map(|it| it.timings.ttft_ms);
        times.sum::<f64>() / self.sequences.len().max(1) as f64
    }

    /// Tokens of all requests per second, while all of them generate.
    pub(super) fn decode_tok_s(&self) -> f64 {
        if let [alone] = &self.sequences[..] {
            return decode_rate(&alone.completion);
        }
        let arrivals: Vec<&[Instant]> = self.sequences.iter().map(|it| &it.tokens[..]).collect();
        joint_rate(&arrivals)
    }
}

/// Arrivals per second between the first one of the sequence that begins last and the last one of that which ends first.
/// Zero if no such time exists.
fn joint_rate(arrivals: &[&[Instant]]) -> f64 {
    let start = arrivals.iter().filter_map(|it| it.first()).max();
    let end = arrivals.iter().filter_map(|it| it.last()).min();
    match (start, end) {
        (Some(start), Some(end)) if start < end => {
            let counted = arrivals.iter().copied().flatten().filter(|at| start < *at && *at <= end).count();
            counted as f64 / (*end - *start).as_secs_f64()
        }
        _ => 0.0,
    }
}

fn listen(mut generation: Generation) -> anyhow::Result<Sequence> {
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Text { tokens: new, .. } => tokens.extend(new.iter().map(|_| Instant::now())),
            Event::Done(completion) if completion.finish == FinishReason::Cancelled => return Err(Interrupted.into()),
            Event::Done(completion) => return Ok(Sequence { completion, tokens }),
            Event::Failed(error) => return Err(error.into()),
            Event::Prompt(_) | Event::Embedding(_) => {}
        }
    }
    bail!("the engine ended without an answer")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_time_counts_in_which_all_generate() {
        let start = Instant::now();
        let at = |seconds: &[u64]| seconds.iter().map(|&it| start + Duration::from_secs(it)).collect::<Vec<_>>();
        let (early, late) = (at(&[0, 1, 2, 3, 4]), at(&[2, 4, 6, 8]));
        // From 2 to 4: two tokens of the first and one of the second.
        assert_eq!(joint_rate(&[&early, &late]), 1.5);
        assert_eq!(joint_rate(&[&early, &at(&[9, 10])]), 0.0);
    }
}
