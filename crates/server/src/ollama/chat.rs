//! `POST /api/chat`

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use engine::ModelInfo;
use model::ChatInput;
use serde_json::{Map, Value};

use super::answer::{self, Call, Form};
use super::params::Common;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::request;
use crate::tools::{CallForm, Choice, Told, Tool, Toolbox};

pub(super) async fn chat(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let started = Instant::now();
    let (lease, call) = app.prepare(body, |_, body, model| read(body, model)).await?;
    answer::respond(app, lease, call, started).await
}

fn read(body: &Value, model: &ModelInfo) -> Result<Call, ApiError> {
    let fields = Fields::of(body, "")?;
    let mut common = Common::read(&fields)?;
    let (toolbox, form) = (tools(&fields)?, CallForm::of(model));
    common.request.constraint = toolbox.constraint(form, common.request.constraint.take(), "format")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Ok(Call::load(Form::Chat, common));
    }
    let read = |(index, message)| read_message(&Fields::of(message, format!("messages[{index}]"))?);
    let messages = messages.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let Told { messages, tools } = Told::new(model, &toolbox, messages);
    let input = ChatInput { messages, tools, add_generation_prompt: true, ..ChatInput::default() };
    let prompt = request::conversation(model, "messages", &input)?;
    Ok(Call::of(Form::Chat, common, (prompt, "messages"), toolbox.is_in_use().then_some(form)))
}

/// The tools, all of which the model may call as it likes: this API knows no other choice.
fn tools(fields: &Fields<'_>) -> Result<Toolbox, ApiError> {
    let read = |(index, tool)| read_tool(&Fields::of(tool, format!("tools[{index}]"))?);
    let tools = fields.array("tools")?.unwrap_or_default();
    let tools = tools.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let toolbox = Toolbox { tools, choice: Choice::Auto, parallel: true };
    toolbox.check(fields, "tools", "tools")?;
    Ok(toolbox)
}

fn read_tool(tool: &Fields<'_>) -> Result<Tool, ApiError> {
    if tool.text("type")?.is_some_and(|kind| kind != "function") {
        return Err(tool.error(Code::UnsupportedValue, "type", "must be \"function\""));
    }
    let function = tool.nested("function")?.ok_or_else(|| tool.missing("function"))?;
    function.nested("parameters")?;
    let (name, description) = (function.required_text("name")?, function.text("description")?);
    Ok(Tool::new(name, description, function.value("parameters"), (false, function.path("parameters"))))
}

/// A message as templates expect it.
fn read_message(message: &Fields<'_>) -> Result<Value, ApiError> {
    let role = message.required_text("role")?;
    if !["system", "user", "assistant", "tool"].contains(&role) {
        let problem = format!("is {role:?}, but must be system, user, assistant or tool");
        return Err(message.error(Code::InvalidValue, "role", problem));
    }
    request::refuse_unsupported(message, &["images"])?;
    let mut read = Map::new();
    read.insert("role".to_owned(), role.into());
    read.insert("content".to_owned(), message.text("content")?.unwrap_or_default().into());
    if let Some(name) = message.text("tool_name")? {
        read.insert("name".to_owned(), name.into());
    }
    if let Some(calls) = message.array("tool_calls")?.filter(|calls| !calls.is_empty()) {
        read.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(read.into())
}
