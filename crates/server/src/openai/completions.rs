//! `POST /v1/completions`

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{ModelInfo, TokenInfo};
use serde::Serialize;
use serde_json::Value;

use super::chunks::{ChunkWriter, Chunks};
use super::logprobs::{CompletionLogprobs, CompletionLogprobsWriter};
use super::params::{self, Common, StreamOptions};
use super::prompt;
use super::usage::Usage;
use super::{finish_reason, new_id, now};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::plan::Plan;
use crate::request;
use crate::run::{Progress, Run};
use crate::sse;

/// OpenAI's own default for this API.
const MAX_TOKENS_DEFAULT: usize = 16;

/// Most answers in one response, all prompts together.
const ANSWERS_MAX: usize = 2048;

pub(super) async fn completions(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let (lease, call) = app.prepare(body, |_, body, model| Call::read(body, model)).await?;
    let Call { plan, stream, logprobs, echo } = call;
    let head = Head { id: new_id("cmpl"), created: now(), model: lease.model().clone(), logprobs, echo };
    let run = Run::start(Arc::clone(&app), lease, plan)?;
    match stream {
        Some(options) => {
            Ok(sse::respond(run, ChunkWriter(CompletionChunks::new(head, options)), app.options.keep_alive_interval))
        }
        None => Ok(Json(head.complete(run).await?).into_response()),
    }
}

/// What a request asks for.
struct Call {
    plan: Plan,
    stream: Option<StreamOptions>,
    logprobs: bool,
    /// The text of each prompt, where the answer is to begin with it.
    echo: Option<Vec<String>>,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        let Common { mut request, choices, stream } = Common::read(&fields, model)?;
        request::refuse_unsupported(&fields, &["suffix"])?;
        // Asking for as many candidates as answers asks for nothing.
        if fields.count("best_of", 1..=u32::MAX)?.is_some_and(|candidates| candidates != choices) {
            return Err(fields.error(Code::UnsupportedValue, "best_of", "is not supported: leave it out"));
        }
        let echo = fields.flag("echo")?.unwrap_or(false);
        request.logprobs = fields.count("logprobs", 0..=params::TOP_LOGPROBS_MAX)?;
        request.prompt_logprobs = request.logprobs.filter(|_| echo);
        request.max_tokens = Some(fields.count("max_tokens", 0..=u32::MAX)?.unwrap_or(MAX_TOKENS_DEFAULT));
        let logprobs = request.logprobs.is_some();
        let prompts = prompt::read(&fields, &model.tokenizer)?;
        if prompts.len() * choices > ANSWERS_MAX {
            return Err(fields.error(Code::InvalidValue, "n", format!("asks for more than {ANSWERS_MAX} answers")));
        }
        let (prompts, texts): (Vec<_>, Vec<_>) = prompts.into_iter().map(|prompt| (prompt.tokens, prompt.text)).unzip();
        let plan = Plan { prompts, prompt_field: "prompt", choices, request, calls: None };
        Ok(Self { plan, stream, logprobs, echo: echo.then_some(texts) })
    }
}

/// What all chunks of an answer have in common.
struct Head {
    id: String,
    created: u64,
    model: ModelInfo,
    logprobs: bool,
    echo: Option<Vec<String>>,
}

/// A whole answer or a chunk of one: this API has one shape for both.
#[derive(Serialize)]
struct Completion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<Choice>,
    /// Absent from chunks where the client did not ask for it, else `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Head {
    /// The text of the prompt of generation `index`, where it is to be echoed.
    fn echo(&self, plan: &Plan, index: usize) -> Option<&str> {
        self.echo.as_ref().map(|texts| texts[index / plan.choices].as_str())
    }

    fn write(&self, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> Completion {
        let model = self.model.id.clone();
        Completion { id: self.id.clone(), object: "text_completion", created: self.created, model, choices, usage }
    }

    /// Carries out `run` and gives the whole answer.
    async fn complete(self, run: Run) -> Result<Completion, ApiError> {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        let (plan, answers) = run.collect().await?;
        for (index, answer) in answers.into_iter().enumerate() {
            usage.add(&answer.completion, plan.counts_prompt(index));
            let mut text = self.echo(&plan, index).unwrap_or_default().to_owned();
            text.push_str(&answer.text);
            // The prompt's tokens are there only if they are to be echoed.
            let tokens = [answer.prompt, answer.tokens].concat();
            let logprobs =
                self.logprobs.then(|| CompletionLogprobsWriter::default().write(&tokens, &self.model.tokenizer));
            let finish_reason = Some(finish_reason(answer.completion.finish));
            choices.push(Choice { index, text, logprobs, finish_reason });
        }
        Ok(self.write(choices, Some(Some(usage))))
    }
}

/// Writes an answer as a stream of chunks.
struct CompletionChunks {
    head: Head,
    options: StreamOptions,
    usage: Usage,
    /// Of the generations under way.
    logprobs: BTreeMap<usize, CompletionLogprobsWriter>,
}

impl CompletionChunks {
    fn new(head: Head, options: StreamOptions) -> Self {
        Self { head, options, usage: Usage::default(), logprobs: BTreeMap::new() }
    }

    fn logprobs(&mut self, index: usize, tokens: &[TokenInfo]) -> Option<CompletionLogprobs> {
        let writer = self.logprobs.entry(index).or_default();
        self.head.logprobs.then(|| writer.write(tokens, &self.head.model.tokenizer))
    }
}

impl Chunks for CompletionChunks {
    type Chunk = Completion;

    fn chunk(&mut self, plan: &Plan, index: usize, progress: Progress) -> Option<Completion> {
        let mut choice = Choice { index, text: String::new(), logprobs: None, finish_reason: None };
        match progress {
            Progress::Queued | Progress::Begin(_) | Progress::Arguments(_) | Progress::End => return None,
            Progress::Prompt(tokens) => {
                choice.text = self.head.echo(plan, index)?.to_owned();
                choice.logprobs = self.logprobs(index, &tokens);
            }
            Progress::Text(text, tokens) => {
                if text.is_empty() && !self.head.logprobs {
                    return None;
                }
                choice.text = text;
                choice.logprobs = self.logprobs(index, &tokens);
            }
            Progress::Done(completion) => {
                self.logprobs.remove(&index);
                self.usage.add(&completion, plan.counts_prompt(index));
                choice.finish_reason = Some(finish_reason(completion.finish));
            }
        }
        Some(self.head.write(vec![choice], self.options.include_usage.then_some(None)))
    }

    fn last(&mut self) -> Option<Completion> {
        self.options.include_usage.then(|| self.head.write(Vec::new(), Some(Some(self.usage.clone()))))
    }
}
