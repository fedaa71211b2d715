//! Growing answers as newline-delimited JSON.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use crate::run::Run;
use crate::stream::{self, Writer};

/// Keeps proxies such as nginx from collecting the stream before they pass it on.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Streams `run` as `writer` writes it, one piece a line.
pub(crate) fn respond(run: Run, writer: impl Writer) -> Response {
    let lines = stream::pieces(run, writer).map(|piece| Ok::<_, Infallible>(piece.data + "\n"));
    ([(CONTENT_TYPE, "application/x-ndjson"), (X_ACCEL_BUFFERING, "no")], Body::from_stream(lines)).into_response()
}
