//! Refusals and failures. How they are written is the dialect's to say.

use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::{EngineError, SubmitError};

/// Seconds after which a client that is told to try again should do so, where nothing better is known.
const RETRY_AFTER_S: u64 = 1;

/// Why a request was not served. A program can rely on the code; the message is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The body is not JSON.
    InvalidJson,
    /// A field has the wrong JSON type.
    InvalidType,
    /// A field has the right type but a value that means nothing.
    InvalidValue,
    /// A required field is absent.
    MissingParameter,
    /// A field asks for something that this server does not do.
    UnsupportedParameter,
    /// A value asks for something that this server does not do.
    UnsupportedValue,
    /// The prompt fills the context.
    ContextLengthExceeded,
    /// No model of that name runs here.
    ModelNotFound,
    /// The model is on offer, but could not be loaded.
    ModelLoadFailed,
    /// The response that a request goes on from is not remembered.
    PreviousResponseNotFound,
    /// No response of that name is remembered.
    ResponseNotFound,
    /// No such path.
    UnknownUrl,
    /// The path exists, but not for this method.
    MethodNotAllowed,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// The body is larger than allowed.
    RequestTooLarge,
    /// The body was too slow to arrive.
    RequestTimeout,
    /// The answer took longer than the operator allows.
    GenerationTimeout,
    /// There is no API key, or not one of this server's.
    InvalidApiKey,
    /// The request was sent to a name that is not this server's.
    HostNotAllowed,
    /// The API key allows no more at the moment.
    RateLimitExceeded,
    /// The queue is full.
    QueueFull,
    /// The request waited for its turn for longer than the operator allows.
    QueueTimeout,
    /// The engine has failed or was stopped.
    EngineFailed,
    /// The server is about to stop.
    ShuttingDown,
    /// A defect of this server.
    Internal,
}

impl Code {
    /// HTTP status, OpenAI's error type, and name on the wire.
    fn describe(self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        match self {
            Self::InvalidJson => (StatusCode::BAD_REQUEST, INVALID, "invalid_json"),
            Self::InvalidType => (StatusCode::BAD_REQUEST, INVALID, "invalid_type"),
            Self::InvalidValue => (StatusCode::BAD_REQUEST, INVALID, "invalid_value"),
            Self::MissingParameter => (StatusCode::BAD_REQUEST, INVALID, "missing_required_parameter"),
            Self::UnsupportedParameter => (StatusCode::BAD_REQUEST, INVALID, "unsupported_parameter"),
            Self::UnsupportedValue => (StatusCode::BAD_REQUEST, INVALID, "unsupported_value"),
            Self::ContextLengthExceeded => (StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded"),
            Self::ModelNotFound => (StatusCode::NOT_FOUND, INVALID, "model_not_found"),
            Self::ModelLoadFailed => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "model_load_failed"),
            Self::PreviousResponseNotFound => (StatusCode::BAD_REQUEST, INVALID, "previous_response_not_found"),
            Self::ResponseNotFound => (StatusCode::NOT_FOUND, INVALID, "response_not_found"),
            Self::UnknownUrl => (StatusCode::NOT_FOUND, INVALID, "unknown_url"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed"),
            Self::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type"),
            Self::RequestTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, "request_too_large"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "timeout_error", "request_timeout"),
            Self::GenerationTimeout => (StatusCode::GATEWAY_TIMEOUT, "timeout_error", "generation_timeout"),
            Self::InvalidApiKey => (StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key"),
            Self::HostNotAllowed => (StatusCode::FORBIDDEN, "permission_error", "host_not_allowed"),
            Self::RateLimitExceeded => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded"),
            Self::QueueFull => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_full"),
            Self::QueueTimeout => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "queue_timeout"),
            Self::EngineFailed => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "engine_failed"),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "shutting_down"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error"),
        }
    }
}

/// A request that was not served, or not to its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    code: Code,
    message: String,
    /// The field at fault, for example `messages[0].role`.
    param: Option<String>,
    /// Seconds after which it is worth trying again.
    retry_after: Option<u64>,
}

impl ApiError {
    /// An error that is nobody's field's fault.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let retry_after = (code == Code::QueueFull).then_some(RETRY_AFTER_S);
        Self { code, message: message.into(), param: None, retry_after }
    }

    /// An error in the field `param`.
    pub(crate) fn of_field(code: Code, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(code, message) }
    }

    /// A request that may be sent again after `wait`.
    pub(crate) fn try_later(code: Code, message: impl Into<String>, wait: Duration) -> Self {
        // Rounded up, so that nobody comes too soon.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self { retry_after: Some(seconds.max(1)), ..Self::new(code, message) }
    }

    /// A request that the engine did not accept; `prompt` is the field that the prompt came from.
    pub(crate) fn refused(error: &SubmitError, prompt: &str) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::EmptyPrompt | SubmitError::TokenOutOfRange { .. } => {
                Self::of_field(Code::InvalidValue, prompt, message)
            }
            SubmitError::PromptTooLong { .. } => Self::of_field(Code::ContextLengthExceeded, prompt, message),
            SubmitError::BadSampling { name, .. } => Self::of_field(Code::InvalidValue, *name, message),
            SubmitError::QueueFull { retry_after, .. } => {
                Self::new(Code::QueueFull, message).retried_after(*retry_after)
            }
            SubmitError::NotRunning(_) => Self::new(Code::EngineFailed, message),
            _ => Self::new(Code::InvalidValue, message),
        }
    }

    /// The same with the time after which it is worth trying again.
    pub(crate) fn retried_after(self, time: Duration) -> Self {
        Self { retry_after: Some(time.as_secs()), ..self }
    }

    /// HTTP status, OpenAI's error type, and the name of the code.
    pub(crate) fn describe(&self) -> (StatusCode, &'static str, &'static str) {
        self.code.describe()
    }

    /// What was wrong, in a sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The field at fault.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> Self {
        let code = if *error == EngineError::ShutDown { Code::ShuttingDown } else { Code::EngineFailed };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    /// A response without a body: `crate::dialect` writes it, for which the error travels along.
    fn into_response(self) -> Response {
        let (status, _, _) = self.code.describe();
        let mut response = status.into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}
