//! Which API a request is meant for, where that makes a difference outside of its own handlers.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::error::ApiError;
use crate::{anthropic, ollama, openai};

/// A family of APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's, which is also what unknown paths are answered in.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Dialect {
    /// The dialect of a path.
    pub(crate) fn of(uri: &Uri) -> Self {
        let path = uri.path();
        if path.starts_with("/api/") {
            Self::Ollama
        } else if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// The header in which answers carry the request's identifier.
    pub(crate) fn request_id(self) -> HeaderName {
        HeaderName::from_static(if self == Self::Anthropic { "request-id" } else { "x-request-id" })
    }

    /// The body of a refusal or failure.
    pub(crate) fn error_body(self, error: &ApiError) -> Value {
        match self {
            Self::OpenAi => openai::error_body(error),
            Self::Anthropic => anthropic::error_body(error),
            Self::Ollama => ollama::error_body(error),
        }
    }
}

/// Writes errors in the dialect of the request, whoever refused it: a handler, a limit, or the router.
pub(crate) async fn write_errors(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri());
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let (mut head, _) = response.into_parts();
    // They describe the empty body that is replaced.
    head.headers.remove(axum::http::header::CONTENT_LENGTH);
    head.headers.remove(axum::http::header::CONTENT_TYPE);
    let mut written = (head.status, Json(dialect.error_body(&error))).into_response();
    written.headers_mut().extend(head.headers);
    written
}
