//! `GET /openapi.json`: all routes described for machines. The document is written by hand; tests hold it against the
//! routes and against real answers.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

pub(crate) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}
