//! The request fields that chat completions and completions have in common.

use engine::{ModelInfo, Request, Sampling};
use serde_json::{Map, Value};

use crate::constraint;
use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::request;

/// Most entries in `logit_bias`.
const BIASES_MAX: usize = 1024;
/// Most answers to one prompt, as OpenAI bounds it.
const CHOICES_MAX: u32 = 128;
/// How much a model may be asked to think.
const REASONING_EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
/// Most alternatives reported per token.
pub(super) const TOP_LOGPROBS_MAX: u32 = 20;

/// What the common fields ask for.
pub(super) struct Common {
    /// Everything but the prompt, the token limit and the log-probabilities.
    pub(super) request: Request,
    /// Answers wanted for each prompt.
    pub(super) choices: usize,
    /// How to stream, if the answer is to be streamed.
    pub(super) stream: Option<StreamOptions>,
}

/// How to stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StreamOptions {
    /// Whether a last chunk tells the token counts.
    pub(super) include_usage: bool,
}

impl Common {
    pub(super) fn read(fields: &Fields<'_>, model: &ModelInfo) -> Result<Self, ApiError> {
        fields.required_text("model")?;
        let request = Request {
            sampling: sampling(fields, model.tokenizer.vocabulary())?,
            stop: request::stop_strings(fields, "stop")?,
            ignore_end: fields.flag("ignore_eos")?.unwrap_or(false),
            constraint: constraint::read(fields)?,
            priority: priority(fields)?,
            ..Request::default()
        };
        // Only tells users apart, which this server has no use for; still, it must be what it claims to be.
        fields.text("user")?;
        let choices = fields.count("n", 1..=CHOICES_MAX)?.unwrap_or(1);
        Ok(Self { request, choices, stream: stream(fields)? })
    }
}

/// vLLM's `priority`: smaller numbers go first.
fn priority(fields: &Fields<'_>) -> Result<i32, ApiError> {
    let priority = fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?;
    Ok(priority.and_then(|priority| i32::try_from(priority).ok()).unwrap_or(0))
}

/// How tokens are drawn.
pub(super) fn sampling(fields: &Fields<'_>, vocabulary: usize) -> Result<Sampling, ApiError> {
    let defaults = Sampling::default();
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        // -1 is how vLLM's clients switch it off.
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map_or(0, |k| usize::try_from(k).unwrap_or(0)),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(defaults.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty: fields.number("repetition_penalty", 0.01..=100.0)?.unwrap_or(defaults.repetition_penalty),
        repetition_window: defaults.repetition_window,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(defaults.frequency_penalty),
        logit_bias: logit_bias(fields, vocabulary)?,
        seed: seed(fields)?,
    })
}

/// `{"token id": bias}`
fn logit_bias(fields: &Fields<'_>, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.nested("logit_bias")? else { return Ok(Vec::new()) };
    if biases.object().len() > BIASES_MAX {
        let problem = format!("has {} entries, but at most {BIASES_MAX} are allowed", biases.object().len());
        return Err(fields.error(Code::InvalidValue, "logit_bias", problem));
    }
    let read = |(key, bias): (&String, &Value)| {
        let known = key.parse().ok().filter(|&id: &u32| (id as usize) < vocabulary);
        let id = known.ok_or_else(|| {
            let problem = format!("has the key {key:?}, which is no token id below {vocabulary}");
            fields.error(Code::InvalidValue, "logit_bias", problem)
        })?;
        Ok((id, fields::number(bias, &format!("logit_bias.{key}"), -100.0..=100.0)?))
    };
    biases.object().iter().map(read).collect()
}

/// Any integer of 64 bits, signed or not.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    match fields.value("seed").and_then(Value::as_u64) {
        Some(seed) => Ok(Some(seed)),
        None => Ok(fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned)),
    }
}

fn stream(fields: &Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let streaming = fields.flag("stream")?.unwrap_or(false);
    let options = fields.nested("stream_options")?;
    if !streaming && options.is_some() {
        return Err(fields.error(Code::InvalidValue, "stream_options", "is only allowed when stream is true"));
    }
    let include_usage = options.map(|options| options.flag("include_usage")).transpose()?.flatten().unwrap_or(false);
    Ok(streaming.then_some(StreamOptions { include_usage }))
}

/// Tells the template how much the model is to think, under the names that published templates know.
pub(super) fn reasoning_effort(
    fields: &Fields<'_>,
    name: &str,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let Some(effort) = fields.text(name)? else { return Ok(()) };
    if !REASONING_EFFORTS.contains(&effort) {
        let problem = format!("is {effort:?}, but must be one of {}", REASONING_EFFORTS.join(", "));
        return Err(fields.error(Code::InvalidValue, name, problem));
    }
    // What a client tells the template by itself goes before.
    if effort == "none" {
        arguments.entry("enable_thinking").or_insert(Value::Bool(false));
    } else {
        arguments.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    Ok(())
}
