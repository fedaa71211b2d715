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

pub(super) async fn chat(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let started = Instant::now();
    let (lease, call) = app.prepare(body, |_, body, model| read(body, model)).await?;
    answer::respond(app, lease, call, started).await
}

fn read(body: &Value, model: &ModelInfo) -> Result<Call, ApiError> {
    let fields = Fields::of(body, "")?;
    let common = Common::read(&fields)?;
    if fields.array("tools")?.is_some_and(|tools| !tools.is_empty()) {
        return Err(fields.error(Code::UnsupportedParameter, "tools", "are not supported yet"));
    }
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Ok(Call::load(Form::Chat, common));
    }
    let read = |(index, message)| read_message(&Fields::of(message, format!("messages[{index}]"))?);
    let messages = messages.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let input = ChatInput { messages: Value::Array(messages), add_generation_prompt: true, ..ChatInput::default() };
    let prompt = request::conversation(model, "messages", &input)?;
    Ok(Call::of(Form::Chat, common, prompt, "messages"))
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
