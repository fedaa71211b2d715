//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod inspect;
pub(crate) mod link;
pub(crate) mod perplexity;
pub(crate) mod rank;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod store;
pub(crate) mod tokenize;

use std::io::Write;

use anyhow::bail;
use engine::{Completion, Event, Request, TokenInfo};

use crate::interrupt;
use crate::session::Session;

/// What came of a request.
pub(crate) struct Answer {
    pub(crate) prompt: Vec<TokenInfo>,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) completion: Completion,
}

/// Runs a request to its end, passing on text as it comes. An interrupt ends it early.
pub(crate) fn generate(
    session: &Session,
    request: Request,
    mut show: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Answer> {
    let mut generation = session.engine.submit(request)?;
    let _guard = interrupt::cancels(generation.canceller());
    let (mut prompt, mut text, mut tokens) = (Vec::new(), String::new(), Vec::new());
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Prompt(evaluated) => prompt = evaluated,
            Event::Text { text: new, tokens: of } => {
                show(&new)?;
                text.push_str(&new);
                tokens.extend(of.into_iter().map(|token| token.id));
            }
            Event::Embedding(_) => {}
            Event::Done(completion) => return Ok(Answer { prompt, text, tokens, completion }),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    bail!("the engine ended without an answer")
}

/// Writes text to standard output at once.
pub(crate) fn print_now(text: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Prompt tokens evaluated per second.
pub(crate) fn prefill_rate(completion: &Completion) -> f64 {
    rate((completion.prompt_tokens - completion.cached_tokens) as f64, completion.timings.prefill_ms)
}

/// Tokens generated per second after the first.
pub(crate) fn decode_rate(completion: &Completion) -> f64 {
    rate(completion.completion_tokens.saturating_sub(1) as f64, completion.timings.decode_ms)
}

fn rate(count: f64, milliseconds: f64) -> f64 {
    if milliseconds > 0.0 { count / milliseconds * 1000.0 } else { 0.0 }
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_now(&format!("{}\n", serde_json::to_string(value)?))
}
