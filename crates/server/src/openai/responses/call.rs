//! What a request asks for.

use std::sync::Arc;

use engine::{Constraint, ModelInfo, Request};
use model::ChatInput;
use serde_json::{Map, Value, json};

use super::answer::Draft;
use super::input;
use super::store::Responses;
use crate::constraint;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::openai::params;
use crate::openai::tools::{self, Style};
use crate::plan::Plan;
use crate::request;
use crate::tools::{CallForm, Told};

/// Fields that would change the answer and that this server does not know.
const UNSUPPORTED: [&str; 4] = ["background", "context_management", "conversation", "prompt"];

/// Most entries in `metadata`, as OpenAI bounds them.
const METADATA_MAX: usize = 16;

/// What a request asks for.
pub(super) struct Call {
    pub(super) plan: Plan,
    pub(super) stream: bool,
    pub(super) draft: Draft,
}

impl Call {
    pub(super) fn read(
        body: &Value,
        model: &ModelInfo,
        responses: &Responses,
        owner: Arc<str>,
    ) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        fields.required_text("model")?;
        check(&fields)?;
        let sampling = params::sampling(&fields, model.tokenizer.vocabulary())?;
        let max_tokens = fields.count("max_output_tokens", 1..=u32::MAX)?;
        let (toolbox, form) = (tools::read(&fields, Style::Responses)?, CallForm::of(model));
        let constraint = toolbox.constraint(form, format(&fields)?, "text.format")?;
        let request = Request { sampling, max_tokens, constraint, ..Request::default() };
        let mut extra = Map::new();
        if let Some(reasoning) = fields.nested("reasoning")? {
            params::reasoning_effort(&reasoning, "effort", &mut extra)?;
        }
        let mut conversation = previous(&fields, responses, &owner)?;
        conversation.extend(input::read(&fields)?);
        let instructions = fields.text("instructions")?.filter(|instructions| !instructions.is_empty());
        let instructions = instructions.map(|text| json!({"role": "system", "content": text}));
        // They hold for this answer alone, so that they are no part of the conversation that is remembered.
        let messages = instructions.into_iter().chain(conversation.iter().cloned()).collect();
        let Told { messages, tools } = Told::new(model, &toolbox, messages);
        let input = ChatInput { messages, tools, add_generation_prompt: true, extra };
        let prompts = vec![request::conversation(model, "input", &input)?];
        let stream = fields.flag("stream")?.unwrap_or(false);
        let store = fields.flag("store")?.unwrap_or(true);
        let draft = Draft::new(echo(&fields, model, &request), conversation, store.then_some(owner));
        let calls = toolbox.is_in_use().then_some(form);
        Ok(Self { plan: Plan { prompts, prompt_field: "input", choices: 1, request, calls }, stream, draft })
    }
}

/// The conversation that an earlier response ended.
fn previous(fields: &Fields<'_>, responses: &Responses, owner: &str) -> Result<Vec<Value>, ApiError> {
    let Some(id) = fields.text("previous_response_id")? else { return Ok(Vec::new()) };
    let stored = responses.get(id, owner).ok_or_else(|| {
        let problem = format!("is {id:?}, which is not remembered: send the whole conversation");
        fields.error(Code::PreviousResponseNotFound, "previous_response_id", problem)
    })?;
    Ok(stored.conversation.clone())
}

/// Checks fields that change nothing here, and refuses what cannot be done.
fn check(fields: &Fields<'_>) -> Result<(), ApiError> {
    request::refuse_unsupported(fields, &UNSUPPORTED)?;
    fields.nested("stream_options")?;
    fields.text("user")?;
    if !matches!(fields.text("truncation")?, None | Some("auto" | "disabled")) {
        return Err(fields.error(Code::InvalidValue, "truncation", "must be auto or disabled"));
    }
    check_metadata(fields)?;
    refuse_logprobs(fields)
}

fn check_metadata(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(metadata) = fields.nested("metadata")? else { return Ok(()) };
    if metadata.object().len() > METADATA_MAX {
        let problem = format!("has {} entries, but at most {METADATA_MAX} are allowed", metadata.object().len());
        return Err(fields.error(Code::InvalidValue, "metadata", problem));
    }
    metadata.object().keys().try_for_each(|name| metadata.required_text(name).map(drop))
}

fn refuse_logprobs(fields: &Fields<'_>) -> Result<(), ApiError> {
    let included = fields.array("include")?.unwrap_or_default();
    if included.iter().any(|name| name == "message.output_text.logprobs") {
        return Err(fields.error(Code::UnsupportedValue, "include", "asks for logprobs, which is not supported here"));
    }
    match fields.count("top_logprobs", 0..=params::TOP_LOGPROBS_MAX)? {
        None | Some(0) => Ok(()),
        Some(_) => Err(fields.error(Code::UnsupportedParameter, "top_logprobs", "is not supported here")),
    }
}

/// What the answer must look like.
fn format(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let Some(text) = fields.nested("text")? else { return Ok(None) };
    text.nested("format")?.map_or(Ok(None), |format| constraint::flat_format(&format))
}

/// The parts of a response that repeat the request.
fn echo(fields: &Fields<'_>, model: &ModelInfo, request: &Request) -> Value {
    let own = |name: &str| fields.value(name).cloned();
    json!({
        "object": "response",
        "background": false,
        "instructions": own("instructions"),
        "max_output_tokens": request.max_tokens,
        "metadata": own("metadata").unwrap_or_else(|| json!({})),
        "model": model.id,
        "parallel_tool_calls": own("parallel_tool_calls").unwrap_or(Value::Bool(true)),
        "previous_response_id": own("previous_response_id"),
        "reasoning": own("reasoning").unwrap_or_else(|| json!({"effort": null, "summary": null})),
        "store": own("store").unwrap_or(Value::Bool(true)),
        "temperature": own("temperature").unwrap_or_else(|| json!(1.0)),
        "text": own("text").unwrap_or_else(|| json!({"format": {"type": "text"}})),
        "tool_choice": own("tool_choice").unwrap_or_else(|| json!("auto")),
        "tools": own("tools").unwrap_or_else(|| json!([])),
        "top_logprobs": 0,
        "top_p": own("top_p").unwrap_or_else(|| json!(1.0)),
        "truncation": own("truncation").unwrap_or_else(|| json!("disabled")),
        "user": own("user"),
    })
}
