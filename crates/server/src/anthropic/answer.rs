//! The message that a request is answered with, whole or as a sequence of events.

use engine::{Completion, FinishReason};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::plan::Plan;
use crate::run::{Answer, Progress};
use crate::stamp::new_id;
use crate::stream::{Piece, Writer};

/// A message under way. It always has a block: one of text, empty where the model says nothing, or those of calls.
pub(super) struct Message {
    id: String,
    model: String,
    /// The token limit that the client set.
    max_tokens: Option<usize>,
    /// Blocks that have begun, the last of which is open if it is of a kind.
    blocks: usize,
    open: Option<Block>,
    calls: usize,
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    Call,
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
        let (id, model) = (new_id("msg_"), model.to_owned());
        Self { id, model, max_tokens, blocks: 0, open: None, calls: 0 }
    }

    /// The whole message.
    pub(super) fn whole(&self, answer: &Answer) -> Value {
        let Answer { text, calls, completion, .. } = answer;
        let text = (calls.is_empty() || !text.is_empty()).then(|| json!({"type": "text", "text": text}));
        let calls = calls.iter().map(|call| tool_use(&call.name, call.object()));
        let mut message = self.empty(usage(completion));
        let Stop { reason, sequence } = self.stop(completion, calls.len());
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = sequence.into();
        message["content"] = text.into_iter().chain(calls).collect();
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

    fn stop<'a>(&self, completion: &'a Completion, calls: usize) -> Stop<'a> {
        let sequence = completion.stop_text.as_deref();
        let reason = match completion.finish {
            FinishReason::Length if self.max_tokens.is_some_and(|limit| completion.completion_tokens < limit) => {
                "model_context_window_exceeded"
            }
            FinishReason::Length => "max_tokens",
            FinishReason::Stop if sequence.is_some() => "stop_sequence",
            FinishReason::Stop if calls > 0 => "tool_use",
            // A cancelled generation never reaches a client as an answer.
            FinishReason::Stop | FinishReason::Cancelled | FinishReason::ConstraintFailed => "end_turn",
        };
        Stop { reason, sequence }
    }

    /// The events that come before any text. What the cache held is not known yet.
    fn begin(&mut self, prompt_tokens: usize, may_call: bool) -> Vec<Piece> {
        let usage = counts(prompt_tokens, 0, 0);
        let mut pieces = vec![event("message_start", json!({"message": self.empty(usage)}))];
        if !may_call {
            pieces.extend(self.open(Block::Text, json!({"type": "text", "text": ""})));
        }
        pieces.push(event("ping", json!({})));
        pieces
    }

    /// Begins a block, and ends the one before.
    fn open(&mut self, block: Block, content: Value) -> Vec<Piece> {
        let mut pieces = self.close();
        pieces.push(event("content_block_start", json!({"index": self.blocks, "content_block": content})));
        self.open = Some(block);
        self.blocks += 1;
        pieces
    }

    fn close(&mut self) -> Vec<Piece> {
        let index = self.blocks.saturating_sub(1);
        self.open.take().map(|_| event("content_block_stop", json!({"index": index}))).into_iter().collect()
    }

    fn delta(&self, delta: Value) -> Piece {
        event("content_block_delta", json!({"index": self.blocks.saturating_sub(1), "delta": delta}))
    }

    fn text(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if text.is_empty() {
            return pieces;
        }
        if self.open != Some(Block::Text) {
            pieces = self.open(Block::Text, json!({"type": "text", "text": ""}));
        }
        pieces.push(self.delta(json!({"type": "text_delta", "text": text})));
        pieces
    }

    fn finish(&mut self, completion: &Completion) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.blocks == 0 {
            pieces = self.open(Block::Text, json!({"type": "text", "text": ""}));
        }
        pieces.extend(self.close());
        let Stop { reason, sequence } = self.stop(completion, self.calls);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        pieces.push(event("message_delta", json!({"delta": delta, "usage": usage(completion)})));
        pieces.push(event("message_stop", json!({})));
        pieces
    }
}

/// A block that calls a tool.
fn tool_use(name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": input})
}

impl Writer for Message {
    fn progress(&mut self, plan: &Plan, index: usize, progress: Progress) -> Vec<Piece> {
        match progress {
            Progress::Queued => self.begin(plan.prompt(index).len(), plan.calls.is_some()),
            Progress::Prompt(_) => Vec::new(),
            Progress::Text(text, _) => self.text(&text),
            Progress::Begin(name) => {
                self.calls += 1;
                self.open(Block::Call, tool_use(&name, json!({})))
            }
            Progress::Arguments(text) => vec![self.delta(json!({"type": "input_json_delta", "partial_json": text}))],
            Progress::End => self.close(),
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
