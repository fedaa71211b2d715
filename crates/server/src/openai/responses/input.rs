//! What a request adds to the conversation: a text, or items.

use serde_json::{Value, json};

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};

/// Reads `input` as messages in the form of chat templates.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    match fields.value("input").ok_or_else(|| fields.missing("input"))? {
        Value::String(text) => Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if items.is_empty() => {
            Err(fields.error(Code::InvalidValue, "input", "must have at least one item"))
        }
        Value::Array(items) => {
            let read = |(index, item)| message(&Fields::of(item, format!("input[{index}]"))?);
            items.iter().enumerate().filter_map(|item| read(item).transpose()).collect()
        }
        other => Err(fields::wrong_type("input", "a string or an array of items", other)),
    }
}

/// The message in an item; nothing for what a model thought in an earlier turn.
fn message(item: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    match item.text("type")?.unwrap_or("message") {
        "message" => {}
        "reasoning" => return Ok(None),
        other => {
            let problem = format!("is {other:?}, which is not supported: only messages are");
            return Err(item.error(Code::UnsupportedValue, "type", problem));
        }
    }
    let role = match item.required_text("role")? {
        // OpenAI's newer name; templates know the older one.
        "developer" | "system" => "system",
        role @ ("user" | "assistant") => role,
        other => {
            let problem = format!("is {other:?}, but must be user, assistant, system or developer");
            return Err(item.error(Code::InvalidValue, "role", problem));
        }
    };
    Ok(Some(json!({"role": role, "content": content(item)?})))
}

/// A string, or the text parts of an array joined by line breaks.
fn content(item: &Fields<'_>) -> Result<String, ApiError> {
    let path = item.path("content");
    match item.value("content").ok_or_else(|| item.missing("content"))? {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let read = |(index, part)| text_part(&Fields::of(part, format!("{path}[{index}]"))?);
            Ok(parts.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        other => Err(fields::wrong_type(&path, "a string or an array of parts", other)),
    }
}

fn text_part<'a>(part: &Fields<'a>) -> Result<&'a str, ApiError> {
    match part.required_text("type")? {
        "input_text" | "output_text" => part.required_text("text"),
        "refusal" => part.required_text("refusal"),
        other => {
            let problem = format!("is {other:?}, which this model does not understand: only text is supported");
            Err(part.error(Code::UnsupportedValue, "type", problem))
        }
    }
}
