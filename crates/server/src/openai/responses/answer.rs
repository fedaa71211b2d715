//! The response that a request is answered with, whole or as a sequence of events.

use std::sync::Arc;

use engine::{Completion, FinishReason};
use serde_json::{Value, json};

use super::store::{Responses, Stored};
use crate::app::App;
use crate::error::ApiError;
use crate::openai::now;
use crate::plan::Plan;
use crate::run::Progress;
use crate::stamp::new_id;
use crate::stream::{Piece, Writer};

/// A response under way.
pub(super) struct Draft {
    id: String,
    message_id: String,
    /// The response but for its outcome.
    base: Value,
    /// The conversation up to the answer.
    conversation: Vec<Value>,
    /// Whether it is to be remembered.
    store: bool,
}

impl Draft {
    /// A response that repeats the request as `echo` does, and answers `conversation`.
    pub(super) fn new(echo: Value, conversation: Vec<Value>, store: bool) -> Self {
        let id = new_id("resp_");
        let mut base = echo;
        base["id"] = id.as_str().into();
        base["created_at"] = now().into();
        Self { id, message_id: new_id("msg_"), base, conversation, store }
    }

    /// The response as it is after its end.
    pub(super) fn finished(&self, text: &str, completion: &Completion) -> Value {
        let complete = completion.finish != FinishReason::Length;
        let status = if complete { "completed" } else { "incomplete" };
        let mut response = self.response(status, json!([self.message(status, text)]));
        if !complete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["usage"] = usage(completion);
        response
    }

    /// Remembers the response, if it is to be.
    pub(super) fn remember(&self, responses: &Responses, text: &str, response: &Value) {
        if !self.store {
            return;
        }
        let mut conversation = self.conversation.clone();
        conversation.push(json!({"role": "assistant", "content": text}));
        responses.put(self.id.clone(), Stored { response: response.clone(), conversation });
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

    fn message(&self, status: &str, text: &str) -> Value {
        let mut message = self.begun_message();
        message["status"] = status.into();
        message["content"] = json!([part(text)]);
        message
    }

    fn begun_message(&self) -> Value {
        json!({
            "type": "message",
            "id": self.message_id,
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        })
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
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
    text: String,
    /// The number of the next event.
    number: u64,
}

impl Events {
    pub(super) fn new(app: Arc<App>, draft: Draft) -> Self {
        Self { app, draft, text: String::new(), number: 0 }
    }

    fn event(&mut self, name: &'static str, mut value: Value) -> Piece {
        value["type"] = name.into();
        value["sequence_number"] = self.number.into();
        self.number += 1;
        Piece::named(name, &value)
    }

    /// An event about the text, which is the only part of the only item.
    fn text_event(&mut self, name: &'static str, mut value: Value) -> Piece {
        value["item_id"] = self.draft.message_id.as_str().into();
        value["output_index"] = 0.into();
        value["content_index"] = 0.into();
        self.event(name, value)
    }

    fn begin(&mut self) -> Vec<Piece> {
        let response = self.draft.response("in_progress", json!([]));
        let message = self.draft.begun_message();
        vec![
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
            self.event("response.output_item.added", json!({"output_index": 0, "item": message})),
            self.text_event("response.content_part.added", json!({"part": part("")})),
        ]
    }

    fn delta(&mut self, text: &str) -> Vec<Piece> {
        if text.is_empty() {
            return Vec::new();
        }
        self.text.push_str(text);
        vec![self.text_event("response.output_text.delta", json!({"delta": text, "logprobs": []}))]
    }

    fn finish(&mut self, completion: &Completion) -> Vec<Piece> {
        let response = self.draft.finished(&self.text, completion);
        self.draft.remember(&self.app.responses, &self.text, &response);
        let item = response["output"][0].clone();
        let last = if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        let text = json!({"text": self.text, "logprobs": []});
        let part = json!({"part": part(&self.text)});
        vec![
            self.text_event("response.output_text.done", text),
            self.text_event("response.content_part.done", part),
            self.event("response.output_item.done", json!({"output_index": 0, "item": item})),
            self.event(last, json!({"response": response})),
        ]
    }
}

impl Writer for Events {
    fn progress(&mut self, _: &Plan, _: usize, progress: Progress) -> Vec<Piece> {
        match progress {
            Progress::Queued => self.begin(),
            Progress::Prompt(_) | Progress::Begin(_) | Progress::Arguments(_) | Progress::End => Vec::new(),
            Progress::Text(text, _) => self.delta(&text),
            Progress::Done(completion) => self.finish(&completion),
        }
    }

    fn end(&mut self) -> Vec<Piece> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Piece> {
        let message = self.draft.message("incomplete", &self.text);
        let mut response = self.draft.response("failed", json!([message]));
        response["error"] = json!({"code": "server_error", "message": error.message()});
        vec![self.event("response.failed", json!({"response": response}))]
    }
}
