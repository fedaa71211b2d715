//! OpenAI's API: chat completions, completions, responses and models, with the extensions that vLLM made common.

mod chat;
mod chunks;
mod completions;
mod embeddings;
mod logprobs;
mod messages;
mod models;
mod params;
mod prediction;
mod prompt;
mod rerank;
mod responses;
mod tokenization;
mod tools;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use engine::FinishReason;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::stamp;
pub(crate) use embeddings::shortened;
pub(crate) use responses::Responses;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/rerank", post(rerank::rerank))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/tokenize", post(tokenization::tokenize))
        .route("/detokenize", post(tokenization::detokenize))
        .route("/v1/models", get(models::list))
        // Names of models may contain slashes (`organization/name`).
        .route("/v1/models/{*id}", get(models::retrieve))
}

/// A new identifier such as `chatcmpl-1f2e…`.
fn new_id(kind: &str) -> String {
    stamp::new_id(&format!("{kind}-"))
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    stamp::now().as_secs()
}

/// What this dialect answers when it refuses or fails.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let (_, kind, code) = error.describe();
    json!({"error": {"message": error.message(), "type": kind, "param": error.param(), "code": code}})
}

/// The name of a finish reason. A cancelled generation never reaches a client as an answer.
fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled | FinishReason::ConstraintFailed => "stop",
    }
}
