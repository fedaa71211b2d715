//! The request fields that chat and generate have in common.

use std::time::Duration;

use engine::{Request, Sampling};
use serde_json::Value;

use super::models;
use crate::constraint;
use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::models::parse_keep_alive;
use crate::request;

/// Fields that would change the answer and that this server does not know.
const UNSUPPORTED: [&str; 2] = ["logprobs", "top_logprobs"];

/// What the common fields ask for.
pub(super) struct Common {
    /// The model's name as the client wrote it, which answers repeat.
    pub(super) model: String,
    /// How long the model stays afterwards: `None` if nothing is said, for ever if it is `Some(None)`.
    pub(super) keep_alive: Option<Option<Duration>>,
    /// Whether the answer is to be streamed.
    pub(super) stream: bool,
    /// Everything but the prompt.
    pub(super) request: Request,
}

impl Common {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let name = models::name(fields)?.to_owned();
        request::refuse_unsupported(fields, &UNSUPPORTED)?;
        refuse_thinking(fields)?;
        let keep_alive = keep_alive(fields)?;
        let stream = fields.flag("stream")?.unwrap_or(true);
        let request = Request { constraint: constraint::ollama_format(fields)?, ..options(fields)? };
        Ok(Self { model: name, keep_alive, stream, request })
    }
}

/// `options`, with Ollama's own defaults. Options that shape a runner have no meaning here and are left alone.
fn options(fields: &Fields<'_>) -> Result<Request, ApiError> {
    let defaults = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, ..Sampling::default() };
    let defaults = Sampling { repetition_penalty: 1.1, repetition_window: 64, ..defaults };
    let Some(options) = fields.nested("options")? else {
        return Ok(Request { sampling: defaults, ..Request::default() });
    };
    let (repetition_penalty, repetition_window) = repetition(&options, &defaults)?;
    let count = |name: &str| options.integer(name, i64::from(i32::MIN)..=i64::from(i32::MAX));
    let positive = |count: i64| usize::try_from(count).ok().filter(|&count| count > 0);
    let sampling = Sampling {
        temperature: options.number("temperature", 0.0..=100.0)?.unwrap_or(defaults.temperature),
        top_k: count("top_k")?.map_or(defaults.top_k, |k| positive(k).unwrap_or(0)),
        top_p: options.number("top_p", 0.0..=1.0)?.unwrap_or(defaults.top_p),
        min_p: options.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty,
        repetition_window,
        presence_penalty: options.number("presence_penalty", -2.0..=2.0)?.unwrap_or_default(),
        frequency_penalty: options.number("frequency_penalty", -2.0..=2.0)?.unwrap_or_default(),
        // -1 asks for another one each time.
        seed: options.integer("seed", i64::MIN..=i64::MAX)?.filter(|&seed| seed != -1).map(i64::cast_unsigned),
        logit_bias: Vec::new(),
    };
    // -1 goes on to the end of the context, as does -2.
    let max_tokens = count("num_predict")?.and_then(positive);
    Ok(Request { sampling, max_tokens, stop: request::stop_strings(&options, "stop")?, ..Request::default() })
}

/// The repetition penalty and the window it looks at: `repeat_last_n` is -1 for the whole context and 0 for no penalty.
fn repetition(options: &Fields<'_>, defaults: &Sampling) -> Result<(f32, usize), ApiError> {
    let penalty = options.number("repeat_penalty", 0.0..=100.0)?.unwrap_or(defaults.repetition_penalty);
    let window = options.integer("repeat_last_n", -1..=i64::from(i32::MAX))?;
    Ok(match window {
        _ if penalty == 0.0 => (1.0, 0),
        Some(0) => (1.0, 0),
        Some(window) => (penalty, usize::try_from(window).unwrap_or(0)),
        None => (penalty, defaults.repetition_window),
    })
}

/// `think`: `true` or how much. Ollama refuses it, too, for models that cannot.
fn refuse_thinking(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.value("think") {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(Value::Bool(true) | Value::String(_)) => {
            Err(fields.error(Code::UnsupportedValue, "think", "is not supported: leave it out or set it to false"))
        }
        Some(other) => Err(fields::wrong_type("think", "true, false or a string", other)),
    }
}

/// `keep_alive`: seconds, of which negative ones mean for ever, or a duration such as `5m`, which is read alike.
pub(super) fn keep_alive(fields: &Fields<'_>) -> Result<Option<Option<Duration>>, ApiError> {
    let (text, expected) = match fields.value("keep_alive") {
        None => return Ok(None),
        Some(Value::String(text)) => (text.clone(), "a duration such as \"5m\" or \"1h30m\""),
        Some(Value::Number(number)) => (number.to_string(), "a number of seconds"),
        Some(other) => return Err(fields::wrong_type("keep_alive", "a duration", other)),
    };
    let parsed = parse_keep_alive(&text);
    let problem = || fields.error(Code::InvalidValue, "keep_alive", format!("is {text:?}, but must be {expected}"));
    parsed.map(Some).ok_or_else(problem)
}
