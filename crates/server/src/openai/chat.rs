//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::ModelInfo;
use model::ChatInput;
use serde::Serialize;
use serde_json::{Map, Value};

use super::chunks::{ChunkWriter, Chunks};
use super::logprobs::ChatLogprobs;
use super::params::{self, Common, StreamOptions};
use super::usage::Usage;
use super::{finish_reason, messages, new_id, now};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::plan::Plan;
use crate::request;
use crate::run::{Progress, Run};
use crate::sse;

/// Fields that would change the answer and that this server does not know. (`tools` replaced `functions`.)
const UNSUPPORTED: [&str; 4] = ["audio", "functions", "function_call", "web_search_options"];

/// Names in `chat_template_kwargs` that the server itself sets.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

pub(super) async fn chat_completions(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let (lease, call) = app.prepare(body, |_, body, model| Call::read(body, model)).await?;
    let Call { plan, stream, logprobs } = call;
    let head = Head { id: new_id("chatcmpl"), created: now(), model: lease.model().clone(), logprobs };
    let run = Run::start(Arc::clone(&app), lease, plan)?;
    match stream {
        Some(options) => {
            Ok(sse::respond(run, ChunkWriter(ChatChunks::new(head, options)), app.options.keep_alive_interval))
        }
        None => Ok(Json(head.complete(run).await?).into_response()),
    }
}

/// What a request asks for.
struct Call {
    plan: Plan,
    stream: Option<StreamOptions>,
    logprobs: bool,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        let Common { mut request, choices, stream } = Common::read(&fields, model)?;
        request::refuse_unsupported(&fields, &UNSUPPORTED)?;
        request.logprobs = logprobs(&fields)?;
        request.max_tokens = match fields.count("max_completion_tokens", 1..=u32::MAX)? {
            Some(limit) => Some(limit),
            None => fields.count("max_tokens", 1..=u32::MAX)?,
        };
        let logprobs = request.logprobs.is_some();
        let prompts = vec![prompt(&fields, model)?];
        Ok(Self { plan: Plan { prompts, prompt_field: "messages", choices, request }, stream, logprobs })
    }
}

/// How many alternatives per token are wanted, if log-probabilities are.
fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    match fields.count("top_logprobs", 0..=params::TOP_LOGPROBS_MAX)? {
        Some(1..) if !wanted => {
            Err(fields.error(Code::InvalidValue, "top_logprobs", "is only allowed when logprobs is true"))
        }
        top => Ok(wanted.then(|| top.unwrap_or(0))),
    }
}

/// Renders the conversation with the model's template and tokenizes it.
fn prompt(fields: &Fields<'_>, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    let messages = messages::read(fields)?;
    let tools = tools(fields)?;
    let mut extra = template_arguments(fields)?;
    params::reasoning_effort(fields, "reasoning_effort", &mut extra)?;
    let input = ChatInput { messages, tools, add_generation_prompt: true, extra };
    request::conversation(model, "messages", &input)
}

/// The tools that the template is to describe to the model.
fn tools(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let choice = match fields.value("tool_choice") {
        None => "auto",
        Some(Value::String(choice)) => choice,
        Some(Value::Object(_)) => "a named tool",
        Some(other) => return Err(fields::wrong_type("tool_choice", "a string or an object", other)),
    };
    if !matches!(choice, "auto" | "none") {
        let problem = format!("is {choice:?}, which is not supported yet: only \"auto\" and \"none\" are");
        return Err(fields.error(Code::UnsupportedValue, "tool_choice", problem));
    }
    let Some(tools) = fields.array("tools")?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    for (index, tool) in tools.iter().enumerate() {
        let tool = Fields::of(tool, format!("tools[{index}]"))?;
        if tool.required_text("type")? != "function" {
            return Err(tool.error(Code::UnsupportedValue, "type", "must be \"function\""));
        }
        tool.nested("function")?.ok_or_else(|| tool.missing("function"))?.required_text("name")?;
    }
    Ok((choice == "auto").then(|| Value::Array(tools.to_vec())))
}

/// Further variables for the template, such as a switch for reasoning.
fn template_arguments(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let Some(arguments) = fields.nested("chat_template_kwargs")? else { return Ok(Map::new()) };
    match RESERVED.iter().find(|&&name| arguments.object().contains_key(name)) {
        Some(name) => Err(arguments.error(Code::InvalidValue, name, "is set by the server")),
        None => Ok(arguments.object().clone()),
    }
}

/// What all chunks of an answer have in common.
struct Head {
    id: String,
    created: u64,
    model: ModelInfo,
    logprobs: bool,
}

#[derive(Serialize)]
struct Completion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<String>,
}

impl Head {
    /// Carries out `run` and gives the whole answer.
    async fn complete(self, run: Run) -> Result<Completion, ApiError> {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        let (plan, answers) = run.collect().await?;
        for (index, answer) in answers.into_iter().enumerate() {
            usage.add(&answer.completion, plan.counts_prompt(index));
            choices.push(Choice {
                index,
                message: Message { role: "assistant", content: answer.text, refusal: None },
                logprobs: self.logprobs.then(|| ChatLogprobs::of(&answer.tokens, &self.model.tokenizer)),
                finish_reason: finish_reason(answer.completion.finish),
            });
        }
        let Self { id, created, model, .. } = self;
        Ok(Completion { id, object: "chat.completion", created, model: model.id, choices, usage })
    }
}

/// Writes an answer as a stream of chunks.
struct ChatChunks {
    head: Head,
    options: StreamOptions,
    usage: Usage,
}

#[derive(Serialize)]
struct Chunk {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<ChunkChoice>,
    /// Absent where the client did not ask for it, else `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

impl ChatChunks {
    fn new(head: Head, options: StreamOptions) -> Self {
        Self { head, options, usage: Usage::default() }
    }

    fn write(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> Chunk {
        Chunk {
            id: self.head.id.clone(),
            object: "chat.completion.chunk",
            created: self.head.created,
            model: self.head.model.id.clone(),
            choices,
            usage: self.options.include_usage.then_some(usage),
        }
    }
}

impl Chunks for ChatChunks {
    type Chunk = Chunk;

    fn chunk(&mut self, plan: &Plan, index: usize, progress: Progress) -> Option<Chunk> {
        let mut choice = ChunkChoice { index, delta: Delta::default(), logprobs: None, finish_reason: None };
        match progress {
            Progress::Queued => {
                choice.delta = Delta { role: Some("assistant"), content: Some(String::new()) };
            }
            Progress::Prompt(_) => return None,
            Progress::Text(text, tokens) => {
                if text.is_empty() && !self.head.logprobs {
                    return None;
                }
                choice.delta.content = Some(text);
                choice.logprobs = self.head.logprobs.then(|| ChatLogprobs::of(&tokens, &self.head.model.tokenizer));
            }
            Progress::Done(completion) => {
                self.usage.add(&completion, plan.counts_prompt(index));
                choice.finish_reason = Some(finish_reason(completion.finish));
            }
        }
        Some(self.write(vec![choice], None))
    }

    fn last(&mut self) -> Option<Chunk> {
        self.options.include_usage.then(|| self.write(Vec::new(), Some(self.usage.clone())))
    }
}
