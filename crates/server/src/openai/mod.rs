//! OpenAI's API: chat completions, completions and models, with the extensions that vLLM made common.

mod chat;
mod completions;
mod logprobs;
mod messages;
mod models;
mod params;
mod prompt;
mod usage;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::routing::{get, post};
use engine::FinishReason;

use crate::app::App;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models::list))
        // Names of models may contain slashes (`organization/name`).
        .route("/v1/models/{*id}", get(models::retrieve))
}

/// A new identifier such as `chatcmpl-1f2e…`. Unique, not secret.
pub(crate) fn new_id(prefix: &str) -> String {
    // Each `RandomState` has new random keys, so that an empty hash is a random number.
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}-{:016x}{:016x}", random(), random())
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The name of a finish reason. A cancelled generation never reaches a client as an answer.
fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}
