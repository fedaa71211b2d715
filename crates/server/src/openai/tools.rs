//! Tools in OpenAI's words: those of chat completions, and those of responses, which are one level flatter.

use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::tools::{Choice, Tool, Toolbox};

/// Which of the two APIs asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// The function stands in an object of its own.
    Chat,
    /// The function's fields stand beside the type.
    Responses,
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn read(fields: &Fields<'_>, style: Style) -> Result<Toolbox, ApiError> {
    let read = |(index, tool)| read_tool(&Fields::of(tool, format!("tools[{index}]"))?, style);
    let tools = fields.array("tools")?.unwrap_or_default();
    let tools: Vec<Tool> = tools.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let toolbox = narrowed(fields, Toolbox { tools, choice: choice(fields, style)?, parallel })?;
    toolbox.check(fields, "tools", "tool_choice")?;
    Ok(toolbox)
}

fn read_tool(tool: &Fields<'_>, style: Style) -> Result<Tool, ApiError> {
    match tool.required_text("type")? {
        "function" => {}
        other => {
            let problem = format!("is {other:?}, but must be \"function\": this server calls nothing by itself");
            return Err(tool.error(Code::UnsupportedValue, "type", problem));
        }
    }
    let nested;
    let function = match style {
        Style::Responses => tool,
        Style::Chat => {
            nested = tool.nested("function")?.ok_or_else(|| tool.missing("function"))?;
            &nested
        }
    };
    let name = function.required_text("name")?;
    let strict = (function.flag("strict")?.unwrap_or(false), function.path("parameters"));
    let parameters = function.nested("parameters")?;
    let parameters = parameters.and_then(|_| function.value("parameters"));
    let mut read = Tool::new(name, function.text("description")?, parameters, strict);
    if style == Style::Chat {
        // Templates may know more of it than this server does.
        read.described = Value::Object(tool.object().clone());
    }
    Ok(read)
}

fn choice(fields: &Fields<'_>, style: Style) -> Result<Choice, ApiError> {
    match fields.value("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            other => {
                let problem =
                    format!("is {other:?}, but must be auto, none, required or an object that names a function");
                Err(fields.error(Code::InvalidValue, "tool_choice", problem))
            }
        },
        Some(Value::Object(_)) => chosen(fields, style),
        Some(other) => Err(fields::wrong_type("tool_choice", "a string or an object", other)),
    }
}

/// A choice that is an object: a function, or the mode for the tools that are allowed.
fn chosen(fields: &Fields<'_>, style: Style) -> Result<Choice, ApiError> {
    let choice = fields.nested("tool_choice")?.ok_or_else(|| fields.missing("tool_choice"))?;
    match choice.required_text("type")? {
        "function" if style == Style::Responses => Ok(Choice::Named(choice.required_text("name")?.to_owned())),
        "function" => {
            let function = choice.nested("function")?.ok_or_else(|| choice.missing("function"))?;
            Ok(Choice::Named(function.required_text("name")?.to_owned()))
        }
        "allowed_tools" => {
            // In responses, what is allowed stands beside the type.
            let nested = choice.nested("allowed_tools")?;
            mode(nested.as_ref().unwrap_or(&choice))
        }
        other => {
            let problem = format!("is {other:?}, but must be function or allowed_tools");
            Err(choice.error(Code::UnsupportedValue, "type", problem))
        }
    }
}

fn mode(allowed: &Fields<'_>) -> Result<Choice, ApiError> {
    match allowed.required_text("mode")? {
        "auto" => Ok(Choice::Auto),
        "required" => Ok(Choice::Required),
        other => Err(allowed.error(Code::InvalidValue, "mode", format!("is {other:?}, but must be auto or required"))),
    }
}

/// Leaves only the tools that `tool_choice` allows.
fn narrowed(fields: &Fields<'_>, mut toolbox: Toolbox) -> Result<Toolbox, ApiError> {
    let choice = fields.value("tool_choice");
    let allowed = choice.filter(|choice| choice["type"] == "allowed_tools");
    let Some(choice) = allowed else { return Ok(toolbox) };
    let list = choice["allowed_tools"].get("tools").or_else(|| choice.get("tools"));
    let names: Vec<&str> = list
        .and_then(Value::as_array)
        .ok_or_else(|| fields.error(Code::MissingParameter, "tool_choice", "lists no tools that are allowed"))?
        .iter()
        .filter_map(|tool| tool["name"].as_str().or_else(|| tool["function"]["name"].as_str()))
        .collect();
    toolbox.tools.retain(|tool| names.contains(&tool.name.as_str()));
    Ok(toolbox)
}
