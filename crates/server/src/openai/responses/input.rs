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
            let mut turns = Vec::new();
            for (index, item) in items.iter().enumerate() {
                add(&mut turns, &Fields::of(item, format!("input[{index}]"))?)?;
            }
            if turns.is_empty() {
                return Err(fields.error(Code::InvalidValue, "input", "must have at least one message"));
            }
            Ok(turns)
        }
        other => Err(fields::wrong_type("input", "a string or an array of items", other)),
    }
}

/// Adds an item to the conversation. What a model thought in an earlier turn is left out.
fn add(turns: &mut Vec<Value>, item: &Fields<'_>) -> Result<(), ApiError> {
    match item.text("type")?.unwrap_or("message") {
        "message" => turns.push(message(item)?),
        "reasoning" => {}
        "function_call" => {
            let (id, name) = (item.required_text("call_id")?, item.required_text("name")?);
            let written = item.required_text("arguments")?;
            // Templates expect the object, but what is none is the client's own.
            let arguments = serde_json::from_str(written).ok().filter(Value::is_object);
            let arguments = arguments.unwrap_or_else(|| written.into());
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            match turns.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => turns.push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            }
        }
        "function_call_output" => {
            let (id, output) = (item.required_text("call_id")?, text(item, "output")?);
            turns.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
        }
        other => {
            let problem = format!("is {other:?}, which is not supported: only messages and calls of functions are");
            return Err(item.error(Code::UnsupportedValue, "type", problem));
        }
    }
    Ok(())
}

fn message(item: &Fields<'_>) -> Result<Value, ApiError> {
    let role = match item.required_text("role")? {
        // OpenAI's newer name; templates know the older one.
        "developer" | "system" => "system",
        role @ ("user" | "assistant") => role,
        other => {
            let problem = format!("is {other:?}, but must be user, assistant, system or developer");
            return Err(item.error(Code::InvalidValue, "role", problem));
        }
    };
    Ok(json!({"role": role, "content": text(item, "content")?}))
}

/// A string, or the text parts of an array joined by line breaks.
fn text(item: &Fields<'_>, name: &str) -> Result<String, ApiError> {
    let path = item.path(name);
    match item.value(name).ok_or_else(|| item.missing(name))? {
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
