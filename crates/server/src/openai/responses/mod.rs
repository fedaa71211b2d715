//! `/v1/responses`: answers that the server remembers, so that a client need not send the conversation again.

mod answer;
mod call;
mod input;
mod item;
mod store;

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use engine::ModelInfo;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::JsonBody;
use crate::client::Client;
use crate::error::{ApiError, Code};
use crate::run::Run;
use crate::sse;
use answer::Events;
use call::Call;
pub(crate) use store::Responses;

pub(super) async fn create(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let owner = body.client().owner();
    let read = |app: &App, body: &Value, model: &ModelInfo| Call::read(body, model, &app.responses, owner);
    let (lease, call) = app.prepare(body, read).await?;
    let Call { plan, stream, draft } = call;
    let run = Run::start(Arc::clone(&app), lease, plan)?;
    if stream {
        let keep_alive = app.options.keep_alive_interval;
        return Ok(sse::respond(run, Events::new(app, draft), keep_alive));
    }
    let (_, answers) = run.collect().await?;
    let Ok([answer]) = <[_; 1]>::try_from(answers) else {
        return Err(ApiError::new(Code::Internal, "the engine did not give one answer"));
    };
    Ok(Json(draft.whole(&app.responses, answer)).into_response())
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let stored = app.responses.get(&id, &client.owner()).ok_or_else(|| not_found(&id))?;
    Ok(Json(stored.response.clone()))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if !app.responses.remove(&id, &client.owner()) {
        return Err(not_found(&id));
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

fn not_found(id: &str) -> ApiError {
    let message = format!("no response {id:?} is remembered: it never was, was deleted, or had to make room");
    ApiError::of_field(Code::ResponseNotFound, "id", message)
}
