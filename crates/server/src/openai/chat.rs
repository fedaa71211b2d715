//! `POST /v1/chat/completions`

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{FinishReason, ModelInfo};
use model::ChatInput;
use serde::Serialize;
use serde_json::{Map, Value};

use super::chunks::{ChunkWriter, Chunks};
use super::logprobs::ChatLogprobs;
use super::params::{self, Common, StreamOptions};
use super::tools::{self, Style};
use super::usage::Usage;
use super::{finish_reason, messages, new_id, now, prediction};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::plan::Plan;
use crate::request;
use crate::run::{Progress, Run};
use crate::sse;
use crate::tools::{Call as ToolCall, CallForm, Told, Toolbox};

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
        refuse_modalities(&fields)?;
        request.logprobs = logprobs(&fields)?;
        request.prediction = prediction::read(&fields, model)?;
        request.max_tokens = match fields.count("max_completion_tokens", 1..=u32::MAX)? {
            Some(limit) => Some(limit),
            None => fields.count("max_tokens", 1..=u32::MAX)?,
        };
        let logprobs = request.logprobs.is_some();
        let (toolbox, form) = (tools::read(&fields, Style::Chat)?, CallForm::of(model));
        request.constraint = toolbox.constraint(form, request.constraint.take(), "response_format")?;
        let prompts = vec![prompt(&fields, model, &toolbox)?];
        let calls = toolbox.is_in_use().then_some(form);
        Ok(Self { plan: Plan { prompts, prompt_field: "messages", choices, request, calls }, stream, logprobs })
    }
}

/// Refuses to answer in anything but text.
fn refuse_modalities(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.array("modalities")?.unwrap_or_default().iter().find(|&modality| modality != "text") {
        None => Ok(()),
        Some(other) => {
            let problem = format!("asks for {other}, but this server answers with text only");
            Err(fields.error(Code::UnsupportedValue, "modalities", problem))
        }
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
fn prompt(fields: &Fields<'_>, model: &ModelInfo, toolbox: &Toolbox) -> Result<Vec<u32>, ApiError> {
    let Told { messages, tools } = Told::new(model, toolbox, messages::read(fields)?);
    let mut extra = template_arguments(fields)?;
    params::reasoning_effort(fields, "reasoning_effort", &mut extra)?;
    let input = ChatInput { messages, tools, add_generation_prompt: true, extra };
    request::conversation(model, "messages", &input)
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
    /// `null` where the model calls tools and says nothing.
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CalledTool>,
}

/// A call of a tool, whole or, in a chunk, a part of it.
#[derive(Serialize)]
struct CalledTool {
    /// Which of the answer's calls this is. Only chunks tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: CalledFunction,
}

#[derive(Serialize)]
struct CalledFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl CalledTool {
    fn whole(ToolCall { name, arguments }: ToolCall) -> Self {
        Self { index: None, ..Self::begun(0, name, arguments) }
    }

    /// The beginning of call `index`.
    fn begun(index: usize, name: String, arguments: String) -> Self {
        let function = CalledFunction { name: Some(name), arguments };
        Self { index: Some(index), id: Some(new_id("call")), kind: Some("function"), function }
    }

    /// More of the arguments of call `index`.
    fn more(index: usize, arguments: String) -> Self {
        Self { index: Some(index), id: None, kind: None, function: CalledFunction { name: None, arguments } }
    }
}

impl Head {
    /// Carries out `run` and gives the whole answer.
    async fn complete(self, run: Run) -> Result<Completion, ApiError> {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        let (plan, answers) = run.collect().await?;
        for (index, answer) in answers.into_iter().enumerate() {
            usage.add(&answer.completion, plan.counts_prompt(index));
            let calls = answer.calls.len();
            let content = Some(answer.text).filter(|text| calls == 0 || !text.is_empty());
            let tool_calls = answer.calls.into_iter().map(CalledTool::whole).collect();
            choices.push(Choice {
                index,
                message: Message { role: "assistant", content, refusal: None, tool_calls },
                logprobs: self.logprobs.then(|| ChatLogprobs::of(&answer.tokens, &self.model.tokenizer)),
                finish_reason: reason(answer.completion.finish, calls),
            });
        }
        let Self { id, created, model, .. } = self;
        Ok(Completion { id, object: "chat.completion", created, model: model.id, choices, usage })
    }
}

/// Why an answer with so many calls ended.
fn reason(finish: FinishReason, calls: usize) -> &'static str {
    if calls > 0 && finish == FinishReason::Stop { "tool_calls" } else { finish_reason(finish) }
}

/// Writes an answer as a stream of chunks.
struct ChatChunks {
    head: Head,
    options: StreamOptions,
    usage: Usage,
    /// Calls that have begun, by generation.
    calls: BTreeMap<usize, usize>,
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CalledTool>,
}

impl ChatChunks {
    fn new(head: Head, options: StreamOptions) -> Self {
        Self { head, options, usage: Usage::default(), calls: BTreeMap::new() }
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
                choice.delta.role = Some("assistant");
                choice.delta.content = Some(String::new());
            }
            Progress::Prompt(_) => return None,
            Progress::Text(text, tokens) => {
                if text.is_empty() && !self.head.logprobs {
                    return None;
                }
                choice.delta.content = Some(text);
                choice.logprobs = self.head.logprobs.then(|| ChatLogprobs::of(&tokens, &self.head.model.tokenizer));
            }
            Progress::Begin(name) => {
                let begun = self.calls.entry(index).or_default();
                choice.delta.tool_calls = vec![CalledTool::begun(*begun, name, String::new())];
                *begun += 1;
            }
            Progress::Arguments(text) => {
                let begun = self.calls.get(&index).copied().unwrap_or_default();
                choice.delta.tool_calls = vec![CalledTool::more(begun.saturating_sub(1), text)];
            }
            Progress::End => return None,
            Progress::Done(completion) => {
                self.usage.add(&completion, plan.counts_prompt(index));
                let calls = self.calls.get(&index).copied().unwrap_or_default();
                choice.finish_reason = Some(reason(completion.finish, calls));
            }
        }
        Some(self.write(vec![choice], None))
    }

    fn last(&mut self) -> Option<Chunk> {
        self.options.include_usage.then(|| self.write(Vec::new(), Some(self.usage.clone())))
    }
}
