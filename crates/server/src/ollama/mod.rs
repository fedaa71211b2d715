//! Ollama's API: chat, generate, and what is known of the model.
//!
//! One model runs for as long as the server does, so that requests to load, keep or unload one change nothing, and
//! options that shape a runner (`num_ctx`, `num_thread`, ...) have been decided already.

mod answer;
mod chat;
mod generate;
mod models;
mod params;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/version", get(models::version))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::running))
        .route("/api/show", post(models::show))
        .route("/api/chat", post(chat::chat))
        .route("/api/generate", post(generate::generate))
}

/// What this dialect answers when it refuses or fails.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({"error": error.message()})
}
