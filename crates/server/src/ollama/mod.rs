//! Ollama's API: chat, generate, and what is known of the model.
//!
//! Options that shape a runner (`num_ctx`, `num_thread`, ...) have been decided already when the server was started.

mod answer;
mod chat;
mod embed;
mod generate;
mod models;
mod params;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};

use self::answer::Form;
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
        .route("/api/embed", post(embed::embed))
        .route("/api/embeddings", post(embed::embeddings))
}

/// A piece of an answer at `path` in which nothing is said, for the time until there is something to say.
pub(crate) fn empty_piece(path: &str, model: &str) -> Value {
    let form = if path == "/api/chat" { Form::Chat } else { Form::Generate };
    answer::line(form, model, "")
}

/// What this dialect answers when it refuses or fails.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({"error": error.message()})
}
