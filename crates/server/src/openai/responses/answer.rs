//! The response that a request is answered with, whole or as a sequence of events.

use std::sync::Arc;

use engine::{Completion, FinishReason};
use serde_json::{Value, json};

use super::item::{self, Item};
use super::store::{Responses, Stored};
use crate::app::App;
use crate::error::ApiError;
use crate::openai::now;
use crate::plan::Plan;
use crate::run::{Answer, Progress};
use crate::stamp::new_id;
use crate::stream::{Piece, Writer};
use crate::tools::Call;

/// A response under way.
pub(super) struct Draft {
    id: String,
    /// The response but for its outcome.
    base: Value,
    /// The conversation up to the answer.
    conversation: Vec<Value>,
    /// For whom it is to be remembered, if it is.
    owner: Option<Arc<str>>,
}

impl Draft {
    /// A response that repeats the request as `echo` does, and answers `conversation`.
    pub(super) fn new(echo: Value, conversation: Vec<Value>, owner: Option<Arc<str>>) -> Self {
        let id = new_id("resp_");
        let mut base = echo;
        base["id"] = id.as_str().into();
        base["created_at"] = now().into();
        Self { id, base, conversation, owner }
    }

    /// The response to an answer that is there at once.
    pub(super) fn whole(&self, responses: &Responses, answer: Answer) -> Value {
        let Answer { text, calls, completion, .. } = answer;
        let text = (calls.is_empty() || !text.is_empty()).then(|| Item::message(text));
        let items: Vec<Item> = text.into_iter().chain(calls.into_iter().map(Item::call)).collect();
        self.finish(responses, &items, &completion)
    }

    /// The response as it is after its end, which is remembered if it is to be.
    fn finish(&self, responses: &Responses, items: &[Item], completion: &Completion) -> Value {
        let complete = completion.finish != FinishReason::Length;
        // Only the last can have been cut off.
        let status = |index: usize| if complete || index + 1 < items.len() { "completed" } else { "incomplete" };
        let output = items.iter().enumerate().map(|(index, item)| item.written(status(index))).collect();
        let mut response = self.response(if complete { "completed" } else { "incomplete" }, output);
        if !complete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["usage"] = usage(completion);
        if let Some(owner) = &self.owner {
            let mut conversation = self.conversation.clone();
            conversation.push(item::as_turn(items));
            responses
                .put(self.id.clone(), Stored { owner: Arc::clone(owner), response: response.clone(), conversation });
        }
        response
    }

    fn response(&self, status: &str, output: Value) -> Value {
        let mut response = self.base.clone();
        response["status"] = status.into();
        response["output"] = output;
        response["error"] = Value::Null;
        response["incomplete_details"] = Value::Null;
        response["usage"] = Value::Null;
        response
    }
}

fn usage(completion: &Completion) -> Value {
    json!({
        "input_tokens": completion.prompt_tokens,
        "input_tokens_details": {"cached_tokens": completion.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": completion.prompt_tokens + completion.completion_tokens,
    })
}

/// Writes a response as events, which are numbered.
pub(super) struct Events {
    app: Arc<App>,
    draft: Draft,
    items: Vec<Item>,
    /// Whether the last item is under way.
    is_open: bool,
    /// The number of the next event.
    number: u64,
}

impl Events {
    pub(super) fn new(app: Arc<App>, draft: Draft) -> Self {
        Self { app, draft, items: Vec::new(), is_open: false, number: 0 }
    }

    fn event(&mut self, name: &'static str, mut value: Value) -> Piece {
        value["type"] = name.into();
        value["sequence_number"] = self.number.into();
        self.number += 1;
        Piece::named(name, &value)
    }

    /// An event about the last item.
    fn item_event(&mut self, name: &'static str, mut value: Value) -> Piece {
        if let Some(item) = self.items.last() {
            value["item_id"] = item.id().into();
            if let Item::Message { .. } = item {
                value["content_index"] = 0.into();
            }
        }
        value["output_index"] = self.items.len().saturating_sub(1).into();
        self.event(name, value)
    }

    /// `may_call`: it is not sure that there will be a message.
    fn begin(&mut self, may_call: bool) -> Vec<Piece> {
        let response = self.draft.response("in_progress", json!([]));
        let mut pieces = vec![
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
        ];
        if !may_call {
            pieces.extend(self.open(Item::message(String::new())));
        }
        pieces
    }

    /// Begins an item, and ends the one before.
    fn open(&mut self, item: Item) -> Vec<Piece> {
        let mut pieces = self.close("completed");
        let added = json!({"output_index": self.items.len(), "item": item.begun()});
        let is_message = matches!(item, Item::Message { .. });
        self.items.push(item);
        self.is_open = true;
        pieces.push(self.event("response.output_item.added", added));
        if is_message {
            pieces.push(self.item_event("response.content_part.added", json!({"part": item::part("")})));
        }
        pieces
    }

    fn close(&mut self, status: &str) -> Vec<Piece> {
        let Some(item) = self.items.last().filter(|_| self.is_open) else { return Vec::new() };
        let done = json!({"output_index": self.items.len() - 1, "item": item.written(status)});
        let mut pieces = match item {
            Item::Message { text, .. } => {
                let (text, part) = (json!({"text": text, "logprobs": []}), json!({"part": item::part(text)}));
                vec![
                    self.item_event("response.output_text.done", text),
                    self.item_event("response.content_part.done", part),
                ]
            }
            Item::Call { call, .. } => {
                let done = json!({"name": call.name, "arguments": call.arguments});
                vec![self.item_event("response.function_call_arguments.done", done)]
            }
        };
        self.is_open = false;
        pieces.push(self.event("response.output_item.done", done));
        pieces
    }

    fn text(&mut self, more: &str) -> Vec<Piece> {
        if more.is_empty() {
            return Vec::new();
        }
        let is_message = self.is_open && matches!(self.items.last(), Some(Item::Message { .. }));
        let mut pieces = if is_message { Vec::new() } else { self.open(Item::message(String::new())) };
        if let Some(Item::Message { text, .. }) = self.items.last_mut() {
            text.push_str(more);
        }
        pieces.push(self.item_event("response.output_text.delta", json!({"delta": more, "logprobs": []})));
        pieces
    }

    fn arguments(&mut self, more: &str) -> Vec<Piece> {
        if let Some(Item::Call { call, .. }) = self.items.last_mut() {
            call.arguments.push_str(more);
        }
        vec![self.item_event("response.function_call_arguments.delta", json!({"delta": more}))]
    }

    fn finish(&mut self, completion: &Completion) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.items.is_empty() {
            pieces = self.open(Item::message(String::new()));
        }
        let response = self.draft.finish(&self.app.responses, &self.items, completion);
        let is_complete = response["status"] == "completed";
        pieces.extend(self.close(if is_complete { "completed" } else { "incomplete" }));
        let last = if is_complete { "response.completed" } else { "response.incomplete" };
        pieces.push(self.event(last, json!({"response": response})));
        pieces
    }
}

impl Writer for Events {
    fn progress(&mut self, plan: &Plan, _: usize, progress: Progress) -> Vec<Piece> {
        match progress {
            Progress::Queued => self.begin(plan.calls.is_some()),
            Progress::Prompt(_) => Vec::new(),
            Progress::Text(text, _) => self.text(&text),
            Progress::Begin(name) => self.open(Item::call(Call { name, arguments: String::new() })),
            Progress::Arguments(text) => self.arguments(&text),
            // A call that is cut off is ended with the response, which then is known to be incomplete.
            Progress::End => Vec::new(),
            Progress::Done(completion) => self.finish(&completion),
        }
    }

    fn end(&mut self) -> Vec<Piece> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Piece> {
        let output = self.items.iter().map(|item| item.written("incomplete")).collect();
        let mut response = self.draft.response("failed", output);
        response["error"] = json!({"code": "server_error", "message": error.message()});
        vec![self.event("response.failed", json!({"response": response}))]
    }
}
