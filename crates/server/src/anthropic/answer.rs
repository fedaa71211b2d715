//! The message that a request is answered with, whole or as a sequence of events.

use engine::{Completion, FinishReason};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::plan::Plan;
use crate::run::Progress;
use crate::stamp::new_id;
use crate::stream::{Piece, Writer};

/// A message under way. It always has one block of text, empty where the model says nothing.
pub(super) struct Message {
    id: String,
    model: String,
    /// The token limit that the client set.
    max_tokens: Option<usize>,
}

/// Why a message ended.
struct Stop<'a> {
    reason: &'static str,
    /// The stop string that ended it, if one did.
    sequence: Option<&'a str>,
}

impl Message {
    /// A message of `model`, with nothing in it yet.
    pub(super) fn new(model: &str, max_tokens: Option<usize>) -> Self {
        Self { id: new_id("msg_"), model: model.to_owned(), max_tokens }
    }

    /// The whole message.
    pub(super) fn whole(&self, text: &str, completion: Option<&Completion>) -> Value {
        let mut message = self.empty(completion.map_or(Value::Null, usage));
        message["content"] = json!([{"type": "text", "text": text}]);
        if let Some(completion) = completion {
            let Stop { reason, sequence } = self.stop(completion);
            message["stop_reason"] = reason.into();
            message["stop_sequence"] = sequence.into();
        }
        message
    }

    fn empty(&self, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn stop<'a>(&self, completion: &'a Completion) -> Stop<'a> {
        let sequence = completion.stop_text.as_deref();
        let reason = match completion.finish {
            FinishReason::Length if self.max_tokens.is_some_and(|limit| completion.completion_tokens < limit) => {
                "model_context_window_exceeded"
            }
            FinishReason::Length => "max_tokens",
            FinishReason::Stop if sequence.is_some() => "stop_sequence",
            // A cancelled generation never reaches a client as an answer.
            FinishReason::Stop | FinishReason::Cancelled | FinishReason::ConstraintFailed => "end_turn",
        };
        Stop { reason, sequence }
    }

    /// The events that come before any text. What the cache held is not known yet.
    fn begin(&self, prompt_tokens: usize) -> Vec<Piece> {
        let usage = counts(prompt_tokens, 0, 0);
        let block = json!({"type": "text", "text": ""});
        vec![
            event("message_start", json!({"message": self.empty(usage)})),
            event("content_block_start", json!({"index": 0, "content_block": block})),
            event("ping", json!({})),
        ]
    }

    fn finish(&self, completion: &Completion) -> Vec<Piece> {
        let Stop { reason, sequence } = self.stop(completion);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        vec![
            event("content_block_stop", json!({"index": 0})),
            event("message_delta", json!({"delta": delta, "usage": usage(completion)})),
            event("message_stop", json!({})),
        ]
    }
}

impl Writer for Message {
    fn progress(&mut self, plan: &Plan, index: usize, progress: Progress) -> Vec<Piece> {
        match progress {
            Progress::Queued => self.begin(plan.prompt(index).len()),
            Progress::Prompt(_) | Progress::Begin(_) | Progress::Arguments(_) | Progress::End => Vec::new(),
            Progress::Text(text, _) if text.is_empty() => Vec::new(),
            Progress::Text(text, _) => {
                let delta = json!({"type": "text_delta", "text": text});
                vec![event("content_block_delta", json!({"index": 0, "delta": delta}))]
            }
            Progress::Done(completion) => self.finish(&completion),
        }
    }

    fn end(&mut self) -> Vec<Piece> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Piece> {
        vec![Piece::named("error", &super::error_body(error))]
    }
}

/// An event, which tells its name inside as well.
fn event(name: &'static str, mut value: Value) -> Piece {
    value["type"] = name.into();
    Piece::named(name, &value)
}

fn usage(completion: &Completion) -> Value {
    counts(completion.prompt_tokens, completion.cached_tokens, completion.completion_tokens)
}

/// Tokens read from the cache do not count among those of the input in this dialect.
fn counts(prompt: usize, cached: usize, output: usize) -> Value {
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    })
}
