//! The fields of a request but for the conversation.

use engine::{Constraint, Request, Sampling};

use crate::constraint;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::request;

/// Fields of the original API; it refuses all others.
const KNOWN: [&str; 22] = [
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "messages",
    "metadata",
    "model",
    "output_config",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

/// Fields that would change the answer and that this server does not know.
const UNSUPPORTED: [&str; 3] = ["container", "context_management", "mcp_servers"];

/// Checks what both APIs of this dialect take, apart from the conversation.
pub(super) fn check(fields: &Fields<'_>) -> Result<(), ApiError> {
    if let Some(name) = fields.object().keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(fields.error(Code::UnsupportedParameter, name, "is no field of this API"));
    }
    fields.required_text("model")?;
    request::refuse_unsupported(fields, &UNSUPPORTED)?;
    refuse_thinking(fields)
}

/// Everything that `fields` ask of the engine but the prompt.
pub(super) fn read(fields: &Fields<'_>) -> Result<Request, ApiError> {
    fields.nested("metadata")?;
    // The original takes arrays alone.
    fields.array("stop_sequences")?;
    let sampling = Sampling {
        temperature: fields.number("temperature", 0.0..=1.0)?.unwrap_or(1.0),
        top_k: fields.count("top_k", 0..=u32::MAX)?.unwrap_or(0),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        ..Sampling::default()
    };
    // 0 only evaluates the prompt, which warms the cache.
    let max_tokens = fields.count("max_tokens", 0..=u32::MAX)?.ok_or_else(|| fields.missing("max_tokens"))?;
    let stop = request::stop_strings(fields, "stop_sequences")?;
    let constraint = format(fields)?;
    Ok(Request { sampling, max_tokens: Some(max_tokens), stop, constraint, ..Request::default() })
}

/// What the answer must look like.
fn format(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let Some(output) = fields.nested("output_config")? else { return Ok(None) };
    output.nested("format")?.map(|format| constraint::output_format(&format)).transpose()
}

/// Thinking that is left to the model may as well not happen; what was asked for may not.
fn refuse_thinking(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(thinking) = fields.nested("thinking")? else { return Ok(()) };
    match thinking.required_text("type")? {
        "adaptive" | "disabled" => Ok(()),
        "enabled" => Err(thinking.error(Code::UnsupportedValue, "type", "is \"enabled\", which is not supported yet")),
        other => {
            let problem = format!("is {other:?}, but must be adaptive, disabled or enabled");
            Err(thinking.error(Code::InvalidValue, "type", problem))
        }
    }
}
