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
    /// Why an engine does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    running: usize,
    waiting: usize,
}

/// Status 200 while the engines of all loaded models run, 503 with the reason once one has failed: an engine that cannot
/// answer is never called healthy.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let status: Vec<_> = app.models.status().into_iter().filter_map(|(_, status)| status).collect();
    let running = status.iter().map(|status| status.running).sum();
    let waiting = status.iter().map(|status| status.waiting).sum();
    let failure = status.into_iter().find_map(|status| status.failure);
    let (code, status) =
        if failure.is_none() { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    (code, Json(Health { status, reason: failure, running, waiting })).into_response()
}
