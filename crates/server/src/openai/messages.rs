//! Chat messages: checked, and brought into the shape that chat templates expect.

use serde_json::{Map, Value};

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};

/// Reads `messages` and returns them with all contents as plain strings (or `null` for a message that only calls
/// tools), the role `developer` as `system`, and the arguments of tool calls as objects.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let messages = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if messages.is_empty() {
        return Err(fields.error(Code::InvalidValue, "messages", "must have at least one message"));
    }
    let read = |(index, message)| Ok(Value::Object(read_message(&Fields::of(message, format!("messages[{index}]"))?)?));
    messages.iter().enumerate().map(read).collect()
}

fn read_message(message: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let role = match message.required_text("role")? {
        // OpenAI's newer name; templates know the older one.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        other => {
            let problem = format!("is {other:?}, but must be system, developer, user, assistant or tool");
            return Err(message.error(Code::InvalidValue, "role", problem));
        }
    };
    let calls = tool_calls(message)?;
    if calls.is_some() && role != "assistant" {
        return Err(message.error(Code::InvalidValue, "tool_calls", "belong to messages of the assistant"));
    }
    let content = content(message)?;
    if content.is_none() && calls.is_none() {
        return Err(message.missing("content"));
    }
    // Whatever else is there (name, tool_call_id, reasoning_content) is between the client and the template.
    let mut read = message.object().clone();
    read.retain(|_, value| !value.is_null());
    read.insert("role".to_owned(), role.into());
    read.insert("content".to_owned(), content.map_or(Value::Null, Value::String));
    if let Some(calls) = calls {
        read.insert("tool_calls".to_owned(), calls);
    }
    Ok(read)
}

/// A string, or the text parts of an array joined by line breaks.
fn content(message: &Fields<'_>) -> Result<Option<String>, ApiError> {
    match message.value("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let path = message.path("content");
            let read = |(index, part)| text_part(&Fields::of(part, format!("{path}[{index}]"))?);
            let texts = parts.iter().enumerate().map(read).collect::<Result<Vec<_>, ApiError>>()?;
            Ok(Some(texts.join("\n")))
        }
        Some(other) => Err(fields::wrong_type(&message.path("content"), "a string or an array of text parts", other)),
    }
}

fn text_part<'a>(part: &Fields<'a>) -> Result<&'a str, ApiError> {
    match part.required_text("type")? {
        "text" => part.required_text("text"),
        "refusal" => part.required_text("refusal"),
        other => {
            let problem = format!("is {other:?}, which this model does not understand: only text is supported");
            Err(part.error(Code::UnsupportedValue, "type", problem))
        }
    }
}

/// The tool calls of an earlier answer. OpenAI sends the arguments as a string of JSON; templates expect the object.
fn tool_calls(message: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let Some(calls) = message.array("tool_calls")?.filter(|calls| !calls.is_empty()) else { return Ok(None) };
    let path = message.path("tool_calls");
    let read = |(index, call)| -> Result<Value, ApiError> {
        let call = Fields::of(call, format!("{path}[{index}]"))?;
        let function = call.nested("function")?.ok_or_else(|| call.missing("function"))?;
        function.required_text("name")?;
        let mut read_function = function.object().clone();
        if let Some(Value::String(arguments)) = function.value("arguments")
            && let Ok(arguments @ Value::Object(_)) = serde_json::from_str(arguments)
        {
            read_function.insert("arguments".to_owned(), arguments);
        }
        let mut read = call.object().clone();
        read.insert("function".to_owned(), Value::Object(read_function));
        Ok(Value::Object(read))
    };
    Ok(Some(Value::Array(calls.iter().enumerate().map(read).collect::<Result<_, _>>()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_one(message: Value) -> Value {
        let body = json!({"messages": [message]});
        read(&Fields::of(&body, "").unwrap()).unwrap()[0].take()
    }

    #[test]
    fn parts_become_one_text_and_developers_system() {
        let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
        let read = read_one(json!({"role": "developer", "content": parts, "name": null}));
        assert_eq!(read, json!({"role": "system", "content": "one\ntwo"}));
    }

    #[test]
    fn arguments_of_tool_calls_become_objects() {
        let call =
            |arguments| json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let message = |arguments| json!({"role": "assistant", "content": null, "tool_calls": [call(arguments)]});
        assert_eq!(read_one(message(json!("{\"x\": 1}"))), message(json!({"x": 1})));
        // What is no object stays as it is.
        assert_eq!(read_one(message(json!("{"))), message(json!("{")));
    }
}
