//! `POST /tokenize` and `POST /detokenize`, as vLLM and llama.cpp know them: fields of either are understood, and
//! answers have those of both.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::ModelInfo;
use model::{ChatInput, EncodeOptions};
use serde_json::{Map, Value, json};

use super::{messages, prompt, tools};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request;
use crate::tools::Told;

pub(super) async fn tokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let prepare = |_: &App, body: &Value, model: &ModelInfo| {
        let fields = Fields::of(body, "")?;
        // Neither of the two originals wants the model's name.
        fields.text("model")?;
        answer(&fields, &read(&fields, model)?, model)
    };
    let (_, answer) = app.prepare(body, prepare).await?;
    Ok(Json(answer))
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let prepare = |_: &App, body: &Value, model: &ModelInfo| {
        let fields = Fields::of(body, "")?;
        fields.text("model")?;
        let tokens = fields.array("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
        let text = model.tokenizer.decode(&prompt::token_ids(tokens, "tokens", &model.tokenizer)?);
        Ok(json!({"prompt": text, "content": text}))
    };
    let (_, text) = app.prepare(body, prepare).await?;
    Ok(Json(text))
}

/// The tokens of `messages` (vLLM), `content` (llama.cpp) or `prompt` (vLLM).
fn read(fields: &Fields<'_>, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    if fields.value("messages").is_some() {
        let add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
        let toolbox = tools::read(fields, tools::Style::Chat)?;
        let Told { messages, tools } = Told::new(model, &toolbox, messages::read(fields)?);
        let input = ChatInput { messages, tools, add_generation_prompt, extra: Map::new() };
        return request::conversation(model, "messages", &input);
    }
    let parse_special = fields.flag("parse_special")?.unwrap_or(true);
    let (name, text, add_special) = match fields.text("content")? {
        Some(text) => ("content", text, fields.flag("add_special")?.unwrap_or(false)),
        None => ("prompt", fields.required_text("prompt")?, fields.flag("add_special_tokens")?.unwrap_or(true)),
    };
    request::tokenize(model, name, text, EncodeOptions { add_special, parse_special })
}

fn answer(fields: &Fields<'_>, tokens: &[u32], model: &ModelInfo) -> Result<Value, ApiError> {
    let texts = fields.flag("return_token_strs")?.unwrap_or(false);
    let texts = texts.then(|| tokens.iter().map(|&id| model.tokenizer.token_text(id)).collect::<Vec<_>>());
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let listed: Value = if pieces {
        tokens.iter().map(|&id| json!({"id": id, "piece": piece(id, model)})).collect()
    } else {
        tokens.into()
    };
    Ok(json!({"tokens": listed, "count": tokens.len(), "max_model_len": model.context, "token_strs": texts}))
}

/// The text of a token, or its bytes where it is but a part of a character.
fn piece(id: u32, model: &ModelInfo) -> Value {
    let bytes = model.tokenizer.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok("") => model.tokenizer.token_text(id).into(),
        Ok(text) => text.into(),
        Err(_) => bytes.into(),
    }
}
