//! System prompt and messages: checked, and brought into the shape that chat templates expect.

use engine::ModelInfo;
use model::ChatInput;
use serde_json::{Value, json};

use super::tools::result_text;
use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::request;
use crate::tools::{Told, Toolbox};

/// A conversation, tokenized.
pub(super) struct Conversation {
    pub(super) prompt: Vec<u32>,
    /// Whether the answer goes on from a text of the assistant.
    pub(super) goes_on: bool,
}

/// Renders and tokenizes the conversation. If its last message is a text of the assistant's, the answer goes on from it.
pub(super) fn read(fields: &Fields<'_>, model: &ModelInfo, toolbox: &Toolbox) -> Result<Conversation, ApiError> {
    let system = text(fields, "system")?.unwrap_or_default();
    let mut turns = turns(fields)?;
    let is_text = |turn: &mut Value| turn["role"] == "assistant" && turn.get("tool_calls").is_none();
    let begun = turns.pop_if(is_text);
    let begun = begun.as_ref().and_then(|turn| turn["content"].as_str()).unwrap_or_default();
    if begun.ends_with(char::is_whitespace) {
        let problem = "must not end with white space in the text that the answer goes on from";
        return Err(fields.error(Code::InvalidValue, "messages", problem));
    }
    if !system.is_empty() {
        turns.insert(0, json!({"role": "system", "content": system}));
    }
    let Told { messages, tools } = Told::new(model, toolbox, turns);
    let input = ChatInput { messages, tools, add_generation_prompt: true, ..ChatInput::default() };
    let prompt = request::begun_conversation(model, "messages", &input, begun)?;
    Ok(Conversation { prompt, goes_on: !begun.is_empty() })
}

/// The messages in OpenAI's form. Neighbours with the same role are one.
fn turns(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let messages = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if messages.is_empty() {
        return Err(fields.error(Code::InvalidValue, "messages", "must have at least one message"));
    }
    let mut turns = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        add_turn(&mut turns, &Fields::of(message, format!("messages[{index}]"))?)?;
    }
    Ok(turns)
}

fn add_turn(turns: &mut Vec<Value>, message: &Fields<'_>) -> Result<(), ApiError> {
    let role = match message.required_text("role")? {
        "user" => "user",
        "assistant" => "assistant",
        "system" => "system",
        other => {
            let problem = format!("is {other:?}, but must be user, assistant or system");
            return Err(message.error(Code::InvalidValue, "role", problem));
        }
    };
    let path = message.path("content");
    let mut is_empty = true;
    match message.value("content").ok_or_else(|| message.missing("content"))? {
        Value::String(text) => {
            is_empty &= text.is_empty();
            say(turns, role, text);
        }
        Value::Array(blocks) => {
            for (index, block) in blocks.iter().enumerate() {
                let block = Fields::of(block, format!("{path}[{index}]"))?;
                is_empty &= add_block(turns, role, &block)?;
            }
        }
        other => return Err(fields::wrong_type(&path, "a string or an array of content blocks", other)),
    }
    if is_empty && role != "assistant" {
        return Err(message.error(Code::InvalidValue, "content", "must not be empty"));
    }
    Ok(())
}

/// Adds a block of a message, and says whether there is nothing in it.
fn add_block(turns: &mut Vec<Value>, role: &str, block: &Fields<'_>) -> Result<bool, ApiError> {
    match (block.required_text("type")?, role) {
        ("tool_use", "assistant") => {
            let (id, name) = (block.required_text("id")?, block.required_text("name")?);
            block.nested("input")?.ok_or_else(|| block.missing("input"))?;
            let arguments = block.value("input");
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            if turns.last().is_none_or(|last| last["role"] != role) {
                turns.push(json!({"role": role, "content": null}));
            }
            if let Some(last) = turns.last_mut() {
                match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                }
            }
            Ok(false)
        }
        ("tool_result", "user") => {
            let (id, content) = (block.required_text("tool_use_id")?, result_text(block)?);
            block.flag("is_error")?;
            turns.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            Ok(false)
        }
        ("tool_use" | "tool_result", _) => {
            let problem = "is tool_use, which belongs to the assistant, or tool_result, which belongs to the user";
            Err(block.error(Code::InvalidValue, "type", problem))
        }
        _ => {
            let text = block_text(block)?.unwrap_or_default();
            say(turns, role, text);
            Ok(text.is_empty())
        }
    }
}

/// Adds text to the last turn if it has the same role, else as a turn of its own.
fn say(turns: &mut Vec<Value>, role: &str, text: &str) {
    if text.is_empty() && role != "assistant" {
        return;
    }
    match turns.last_mut().filter(|last| last["role"] == role) {
        Some(last) => {
            let said = match last["content"].as_str() {
                Some(before) if !before.is_empty() => format!("{before}\n{text}"),
                _ => text.to_owned(),
            };
            last["content"] = said.into();
        }
        None => turns.push(json!({"role": role, "content": text})),
    }
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
