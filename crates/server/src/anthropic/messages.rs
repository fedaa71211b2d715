//! `POST /v1/messages` and `POST /v1/messages/count_tokens`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::ModelInfo;
use serde_json::{Value, json};

use super::answer::Message;
use super::{conversation, params};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::plan::Plan;
use crate::run::Run;
use crate::sse;

pub(super) async fn create(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let (lease, Call { plan, stream }) = app.prepare(body, |_, body, model| Call::read(body, model)).await?;
    let message = Message::new(&lease.model().id, plan.request.max_tokens);
    let run = Run::start(Arc::clone(&app), lease, plan)?;
    if stream {
        return Ok(sse::respond(run, message, app.options.keep_alive_interval));
    }
    let (_, answers) = run.collect().await?;
    let text: String = answers.iter().map(|answer| answer.text.as_str()).collect();
    Ok(Json(message.whole(&text, answers.last().map(|answer| &answer.completion))).into_response())
}

pub(super) async fn count_tokens(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let count = |_: &App, body: &Value, model: &ModelInfo| {
        let fields = Fields::of(body, "")?;
        params::check(&fields)?;
        Ok(conversation::read(&fields, model)?.len())
    };
    let (_, tokens) = app.prepare(body, count).await?;
    Ok(Json(json!({"input_tokens": tokens})))
}

/// What a request asks for.
struct Call {
    plan: Plan,
    stream: bool,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        params::check(&fields)?;
        let request = params::read(&fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let prompts = vec![conversation::read(&fields, model)?];
        Ok(Self { plan: Plan { prompts, prompt_field: "messages", choices: 1, request, calls: None }, stream })
    }
}
