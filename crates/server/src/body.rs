//! Request bodies: JSON, of bounded size, within bounded time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde_json::Value;

use crate::app::App;
use crate::client::Client;
use crate::dialect::Dialect;
use crate::error::{ApiError, Code};
use crate::patience::Patience;
use crate::tally::Tally;

/// The header in which a client says for how many seconds it waits.
const REQUEST_TIMEOUT: &str = "x-request-timeout";

/// The bytes of a body that is declared as JSON. The size is bounded by the router's body limit.
pub(crate) struct JsonBody {
    bytes: Bytes,
    dialect: Dialect,
    patience: Patience,
    client: Client,
    tally: Tally,
    timeout: Option<Duration>,
}

impl JsonBody {
    /// Parses the bytes. This can take a while for a large body and belongs off the network threads.
    pub(crate) fn parse(&self) -> Result<Value, ApiError> {
        serde_json::from_slice(&self.bytes)
            .map_err(|error| ApiError::new(Code::InvalidJson, format!("the body is not valid JSON: {error}")))
    }
}

impl JsonBody {
    /// The dialect in which the request is written.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// With whom to leave word when the request waits for its model.
    pub(crate) fn patience(&self) -> Patience {
        self.patience.clone()
    }
}

impl JsonBody {
    /// Who sends it.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where it is counted what the answer takes.
    pub(crate) fn tally(&self) -> Tally {
        self.tally.clone()
    }

    /// Within which time the client wants its answer, if it says so.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

/// The time that the header `X-Request-Timeout` allows, in seconds.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(REQUEST_TIMEOUT) else { return Ok(None) };
    let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
    let timeout =
        seconds.filter(|&seconds| seconds > 0.0).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    timeout.map(Some).ok_or_else(|| {
        let message = format!("{REQUEST_TIMEOUT} is {value:?}, but must be a positive number of seconds");
        ApiError::of_field(Code::InvalidValue, REQUEST_TIMEOUT, message)
    })
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        if !declares_json(request.headers()) && !may_be_undeclared(&request) {
            let message = "the body must be JSON, declared by the header 'Content-Type: application/json'";
            return Err(ApiError::new(Code::UnsupportedMediaType, message));
        }
        let dialect = Dialect::of(request.uri());
        let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
        let tally = request.extensions().get::<Tally>().cloned().unwrap_or_default();
        let timeout = timeout(request.headers())?;
        let patience = request.extensions().get::<Patience>().cloned().unwrap_or_default();
        let read = tokio::time::timeout(app.options.body_timeout, Bytes::from_request(request, app)).await;
        let read = read.map_err(|_| ApiError::new(Code::RequestTimeout, "the body did not arrive in time"))?;
        read.map(|bytes| Self { bytes, dialect, patience, client, tally, timeout }).map_err(|rejection| {
            let message = rejection.body_text();
            if rejection.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE {
                let limit = app.options.body_bytes_max;
                ApiError::new(Code::RequestTooLarge, format!("the body is larger than the {limit} bytes allowed"))
            } else {
                ApiError::new(Code::InvalidJson, format!("the body could not be read: {message}"))
            }
        })
    }
}

/// Whether a body may be JSON without saying so: Ollama's API is used like that (`curl -d`). Browsers name the site
/// that sends, so that no page on another site profits.
fn may_be_undeclared(request: &Request) -> bool {
    Dialect::of(request.uri()) == Dialect::Ollama && !request.headers().contains_key(ORIGIN)
}

/// Whether the content type is `application/json` or one of its relatives (`application/problem+json`).
///
/// A missing or different type is refused: browsers send `text/plain` and forms to other sites without asking, but JSON
/// only where the other site allows it, and this server allows it to none.
fn declares_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let subtype = essence.strip_prefix("application/");
    subtype.is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}
