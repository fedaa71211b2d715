//! Anthropic's API: messages and the counting of their tokens.

mod answer;
mod conversation;
mod messages;
mod params;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
}

/// What this dialect answers when it refuses or fails.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let (status, _, _) = error.describe();
    json!({"type": "error", "error": {"type": error_type(status), "message": error.message()}})
}

fn error_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}
