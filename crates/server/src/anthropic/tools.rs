//! Tools in Anthropic's words.

use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::tools::{Choice, Tool, Toolbox};

/// Reads `tools` and `tool_choice`.
pub(super) fn read(fields: &Fields<'_>) -> Result<Toolbox, ApiError> {
    let read = |(index, tool)| read_tool(&Fields::of(tool, format!("tools[{index}]"))?);
    let tools = fields.array("tools")?.unwrap_or_default();
    let tools = tools.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let (choice, parallel) = choice(fields)?;
    let toolbox = Toolbox { tools, choice, parallel };
    toolbox.check(fields, "tools", "tool_choice")?;
    Ok(toolbox)
}

fn read_tool(tool: &Fields<'_>) -> Result<Tool, ApiError> {
    match tool.text("type")?.unwrap_or("custom") {
        "custom" => {}
        other => {
            let problem = format!("is {other:?}, but must be custom: this server calls nothing by itself");
            return Err(tool.error(Code::UnsupportedValue, "type", problem));
        }
    }
    let name = tool.required_text("name")?;
    tool.nested("input_schema")?.ok_or_else(|| tool.missing("input_schema"))?;
    let strict = (tool.flag("strict")?.unwrap_or(false), tool.path("input_schema"));
    Ok(Tool::new(name, tool.text("description")?, tool.value("input_schema"), strict))
}

/// The choice, and whether several calls may stand in an answer.
fn choice(fields: &Fields<'_>) -> Result<(Choice, bool), ApiError> {
    let Some(choice) = fields.nested("tool_choice")? else { return Ok((Choice::Auto, true)) };
    let parallel = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    let chosen = match choice.required_text("type")? {
        "auto" => Choice::Auto,
        "any" => Choice::Required,
        "none" => Choice::None,
        "tool" => Choice::Named(choice.required_text("name")?.to_owned()),
        other => {
            let problem = format!("has the type {other:?}, but must have auto, any, tool or none");
            return Err(fields.error(Code::InvalidValue, "tool_choice", problem));
        }
    };
    Ok((chosen, parallel))
}

/// What came of a call: a text, or the text of an array of blocks.
pub(super) fn result_text(block: &Fields<'_>) -> Result<String, ApiError> {
    let path = block.path("content");
    match block.value("content") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(blocks)) => {
            let read = |(index, block)| {
                let block = Fields::of(block, format!("{path}[{index}]"))?;
                match block.required_text("type")? {
                    "text" => Ok(block.required_text("text")?.to_owned()),
                    other => {
                        let problem = format!("is {other:?}, which is not supported: only text is");
                        Err(block.error(Code::UnsupportedValue, "type", problem))
                    }
                }
            };
            Ok(blocks.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(other) => Err(fields::wrong_type(&path, "a string or an array of content blocks", other)),
    }
}
