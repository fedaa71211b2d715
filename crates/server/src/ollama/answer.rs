//! What chat and generate answer: lines of text, and a last one with counts and times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use engine::{Completion, FinishReason, TokenInfo};
use serde_json::{Value, json};

use super::params::Common;
use crate::app::App;
use crate::error::ApiError;
use crate::models::Lease;
use crate::ndjson;
use crate::plan::Plan;
use crate::run::{Progress, Run};
use crate::stamp::{new_id, now, rfc3339};
use crate::stream::{Piece, Writer};
use crate::tools::{Call as ToolCall, CallForm};

/// Which of the two APIs answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Text comes as the message of the assistant.
    Chat,
    /// Text comes plain, and with it the tokens of the conversation so far.
    Generate,
}

/// What a request asks for.
pub(super) struct Call {
    form: Form,
    model: String,
    keep_alive: Option<Option<Duration>>,
    stream: bool,
    /// `None` where the model is only to be loaded.
    plan: Option<Plan>,
}

impl Call {
    /// A request without a prompt, which asks for the model to be loaded.
    pub(super) fn load(form: Form, Common { model, keep_alive, stream, .. }: Common) -> Self {
        Self { form, model, keep_alive, stream, plan: None }
    }

    /// A request for an answer to `prompt`, which came from `prompt_field`, with `calls` where the model may call tools.
    pub(super) fn of(
        form: Form,
        common: Common,
        (prompt, prompt_field): (Vec<u32>, &'static str),
        calls: Option<CallForm>,
    ) -> Self {
        let Common { model, keep_alive, stream, request } = common;
        let plan = Plan { prompts: vec![prompt], prompt_field, choices: 1, request, calls };
        Self { form, model, keep_alive, stream, plan: Some(plan) }
    }
}

/// Answers `call`, which came in at `started`, on the model that was lent to it.
pub(super) async fn respond(
    app: Arc<App>,
    lease: Arc<Lease>,
    call: Call,
    started: Instant,
) -> Result<Response, ApiError> {
    let Call { form, model, keep_alive, stream, plan } = call;
    if let Some(keep) = keep_alive {
        lease.keep_for(keep);
    }
    let mut lines = Lines { form, model, started, loading: lease.waited(), tokens: Vec::new(), call: None };
    let Some(plan) = plan else { return Ok(Json(lines.loaded()).into_response()) };
    let run = Run::start(app, lease, plan)?;
    if stream {
        return Ok(ndjson::respond(run, lines));
    }
    let (plan, answers) = run.collect().await?;
    let mut last = Value::Null;
    for (index, answer) in answers.into_iter().enumerate() {
        lines.remember(&answer.tokens);
        last = lines.last(&answer.text, plan.prompt(index), &answer.completion);
        let calls: Vec<Value> = answer.calls.iter().filter_map(tool_call).collect();
        if !calls.is_empty() {
            last["message"]["tool_calls"] = calls.into();
        }
    }
    Ok(Json(last).into_response())
}

/// A piece of an answer of the model that the client calls `model`.
pub(super) fn line(form: Form, model: &str, text: &str) -> Value {
    let mut line = json!({"model": model, "created_at": rfc3339(now()), "done": false});
    match form {
        Form::Chat => line["message"] = json!({"role": "assistant", "content": text}),
        Form::Generate => line["response"] = text.into(),
    }
    line
}

/// A call of a tool, unless it was cut off: this API has no words for a part of one.
fn tool_call(call: &ToolCall) -> Option<Value> {
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    Some(json!({"id": new_id("call_"), "function": {"name": call.name, "arguments": arguments}}))
}

/// Writes an answer as lines.
struct Lines {
    form: Form,
    model: String,
    started: Instant,
    /// How long the request waited for the model to be loaded.
    loading: Duration,
    /// What was generated so far, where the last line is to tell it.
    tokens: Vec<u32>,
    /// The call under way.
    call: Option<ToolCall>,
}

impl Lines {
    /// The line for the call that is complete.
    fn called(&mut self) -> Vec<Piece> {
        let call = self.call.take().as_ref().and_then(tool_call);
        let line = |call| {
            let mut line = self.line("");
            line["message"]["tool_calls"] = json!([call]);
            Piece::json(&line)
        };
        call.into_iter().map(line).collect()
    }

    fn line(&self, text: &str) -> Value {
        line(self.form, &self.model, text)
    }

    fn remember(&mut self, tokens: &[TokenInfo]) {
        if self.form == Form::Generate {
            self.tokens.extend(tokens.iter().map(|token| token.id));
        }
    }

    /// The answer to a request without a prompt.
    fn loaded(&self) -> Value {
        let mut line = self.line("");
        line["done"] = true.into();
        line["done_reason"] = "load".into();
        line
    }

    fn last(&self, text: &str, prompt: &[u32], completion: &Completion) -> Value {
        let mut line = self.line(text);
        line["done"] = true.into();
        line["done_reason"] = done_reason(completion.finish).into();
        line["total_duration"] = nanoseconds(self.started.elapsed());
        line["load_duration"] = nanoseconds(self.loading);
        line["prompt_eval_count"] = completion.prompt_tokens.into();
        line["prompt_eval_duration"] = of_milliseconds(completion.timings.prefill_ms);
        line["eval_count"] = completion.completion_tokens.into();
        line["eval_duration"] = of_milliseconds(completion.timings.decode_ms);
        if self.form == Form::Generate {
            line["context"] = prompt.iter().chain(&self.tokens).copied().collect();
        }
        line
    }
}

impl Writer for Lines {
    fn progress(&mut self, plan: &Plan, index: usize, progress: Progress) -> Vec<Piece> {
        match progress {
            Progress::Queued | Progress::Prompt(_) => Vec::new(),
            Progress::Begin(name) => {
                self.call = Some(ToolCall { name, arguments: String::new() });
                Vec::new()
            }
            Progress::Arguments(text) => {
                self.call.iter_mut().for_each(|call| call.arguments.push_str(&text));
                Vec::new()
            }
            Progress::End => self.called(),
            Progress::Text(text, tokens) => {
                self.remember(&tokens);
                if text.is_empty() { Vec::new() } else { vec![Piece::json(&self.line(&text))] }
            }
            Progress::Done(completion) => vec![Piece::json(&self.last("", plan.prompt(index), &completion))],
        }
    }

    fn end(&mut self) -> Vec<Piece> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Piece> {
        vec![Piece::json(&super::error_body(error))]
    }
}

/// The name of a finish reason. A cancelled generation never reaches a client as an answer.
fn done_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled | FinishReason::ConstraintFailed => "stop",
    }
}

pub(super) fn nanoseconds(duration: Duration) -> Value {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).into()
}

fn of_milliseconds(milliseconds: f64) -> Value {
    // A conversion from a float stops at the ends of the integer's range.
    Value::from((milliseconds * 1e6) as u64)
}
