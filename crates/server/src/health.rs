//! `GET /health`, `/ready` and `/live`: whether requests can be answered, and whether they will be.

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
/// answer is never called healthy. Whoever sends requests to several servers asks this.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    state(&app).respond()
}

/// The same until a failure that only a new start of the server can mend; models that are loaded on demand are loaded anew
/// when they are asked for. Whoever starts servers anew asks this.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    let mut health = state(&app);
    if app.models.can_be_loaded_anew() {
        health = Health { status: "ok", reason: None, ..health };
    }
    health.respond()
}

fn state(app: &App) -> Health {
    let status: Vec<_> = app.models.status().into_iter().filter_map(|(_, status)| status).collect();
    let running = status.iter().map(|status| status.running).sum();
    let waiting = status.iter().map(|status| status.waiting).sum();
    let reason = status.into_iter().find_map(|status| status.failure);
    Health { status: if reason.is_none() { "ok" } else { "failed" }, reason, running, waiting }
}

impl Health {
    fn respond(self) -> Response {
        let status = if self.reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(self)).into_response()
    }
}
