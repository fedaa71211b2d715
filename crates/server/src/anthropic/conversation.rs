//! System prompt and messages: checked, and brought into the shape that chat templates expect.

use engine::ModelInfo;
use model::ChatInput;
use serde_json::{Value, json};

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::request;

/// A stretch of the conversation with one speaker.
struct Turn {
    role: &'static str,
    text: String,
}

/// Renders and tokenizes the conversation. If its last message is the assistant's, the answer goes on from its text.
pub(super) fn read(fields: &Fields<'_>, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    let system = text(fields, "system")?.unwrap_or_default();
    let mut turns = turns(fields)?;
    let begun = turns.pop_if(|turn| turn.role == "assistant").map(|turn| turn.text).unwrap_or_default();
    if begun.ends_with(char::is_whitespace) {
        let problem = "must not end with white space in the text that the answer goes on from";
        return Err(fields.error(Code::InvalidValue, "messages", problem));
    }
    if !system.is_empty() {
        turns.insert(0, Turn { role: "system", text: system });
    }
    let messages = turns.iter().map(|turn| json!({"role": turn.role, "content": turn.text})).collect();
    let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
    request::begun_conversation(model, "messages", &input, &begun)
}

/// The messages, of which neighbours with the same role are one turn.
fn turns(fields: &Fields<'_>) -> Result<Vec<Turn>, ApiError> {
    let messages = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if messages.is_empty() {
        return Err(fields.error(Code::InvalidValue, "messages", "must have at least one message"));
    }
    let mut turns: Vec<Turn> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let turn = turn(&Fields::of(message, format!("messages[{index}]"))?)?;
        match turns.last_mut() {
            Some(last) if last.role == turn.role => {
                last.text.push('\n');
                last.text.push_str(&turn.text);
            }
            _ => turns.push(turn),
        }
    }
    Ok(turns)
}

fn turn(message: &Fields<'_>) -> Result<Turn, ApiError> {
    let role = match message.required_text("role")? {
        "user" => "user",
        "assistant" => "assistant",
        "system" => "system",
        other => {
            let problem = format!("is {other:?}, but must be user, assistant or system");
            return Err(message.error(Code::InvalidValue, "role", problem));
        }
    };
    let text = text(message, "content")?.ok_or_else(|| message.missing("content"))?;
    if text.is_empty() && role != "assistant" {
        return Err(message.error(Code::InvalidValue, "content", "must not be empty"));
    }
    Ok(Turn { role, text })
}

/// A string, or the text of an array of blocks.
fn text(fields: &Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    let path = fields.path(name);
    match fields.value(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(blocks)) => {
            let read = |(index, block)| block_text(&Fields::of(block, format!("{path}[{index}]"))?);
            let texts = blocks.iter().enumerate().filter_map(|block| read(block).transpose());
            Ok(Some(texts.collect::<Result<Vec<_>, ApiError>>()?.join("\n")))
        }
        Some(other) => Err(fields::wrong_type(&path, "a string or an array of content blocks", other)),
    }
}

/// The text of a block; nothing for what a model thought in an earlier turn, which the original leaves out as well.
fn block_text<'a>(block: &Fields<'a>) -> Result<Option<&'a str>, ApiError> {
    match block.required_text("type")? {
        "text" => block.required_text("text").map(Some),
        "thinking" | "redacted_thinking" => Ok(None),
        other => {
            let problem = format!("is {other:?}, which is not supported: only text is");
            Err(block.error(Code::UnsupportedValue, "type", problem))
        }
    }
}
