//! `POST /api/generate`

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use engine::ModelInfo;
use model::{ChatInput, EncodeOptions};
use serde_json::{Value, json};

use super::answer::{self, Call, Form};
use super::params::Common;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::request;

/// Fields that would change the answer and that this server does not know.
const UNSUPPORTED: [&str; 3] = ["images", "suffix", "template"];

pub(super) async fn generate(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let started = Instant::now();
    let (lease, call) = app.prepare(body, |_, body, model| read(body, model)).await?;
    answer::respond(app, lease, call, started).await
}

fn read(body: &Value, model: &ModelInfo) -> Result<Call, ApiError> {
    let fields = Fields::of(body, "")?;
    let common = Common::read(&fields)?;
    request::refuse_unsupported(&fields, &UNSUPPORTED)?;
    let mut tokens = context(&fields, model)?;
    let system = fields.text("system")?.unwrap_or_default();
    let raw = fields.flag("raw")?.unwrap_or(false);
    let prompt = fields.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(Call::load(Form::Generate, common));
    }
    let more = if raw || model.chat_template.is_none() {
        let options = EncodeOptions { add_special: tokens.is_empty(), parse_special: true };
        request::tokenize(model, "prompt", prompt, options)?
    } else {
        let system = Some(json!({"role": "system", "content": system})).filter(|_| !system.is_empty());
        let messages = system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect();
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        request::conversation(model, "prompt", &input)?
    };
    tokens.extend(more);
    Ok(Call::of(Form::Generate, common, (tokens, "prompt"), None))
}

/// The tokens of the conversation so far, which an earlier answer gave.
fn context(fields: &Fields<'_>, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    let vocabulary = model.tokenizer.vocabulary();
    let read = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocabulary);
        id.ok_or_else(|| {
            let problem = format!("has the element {item} at {index}, which is no token id below {vocabulary}");
            fields.error(Code::InvalidValue, "context", problem)
        })
    };
    fields.array("context")?.unwrap_or_default().iter().enumerate().map(read).collect()
}
