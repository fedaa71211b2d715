//! `GET /health`: whether requests can be answered.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::app::App;

#[derive(Serialize)]
struct Health {
    status: &'static str,
    /// Why the engine does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    running: usize,
    waiting: usize,
}

/// Status 200 while the engine runs, 503 with the reason once it has failed: an engine that cannot answer is never
/// called healthy.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let engine::Status { running, waiting, failure } = app.engine.status();
    let (code, status) =
        if failure.is_none() { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    (code, Json(Health { status, reason: failure, running, waiting })).into_response()
}
