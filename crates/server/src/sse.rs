//! Growing answers as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use crate::run::Run;
use crate::stream::{self, Piece, Writer};

/// Streams `run` as `writer` writes it. Silence longer than `keep_alive` is broken by a comment.
pub(crate) fn respond(run: Run, writer: impl Writer, keep_alive: Duration) -> Response {
    let events = stream::pieces(run, writer).map(|piece| Ok::<_, Infallible>(event(piece)));
    let keep_alive = KeepAlive::new().interval(keep_alive).text("keep-alive");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Proxies such as nginx would otherwise collect the stream before they pass it on.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn event(Piece { name, data }: Piece) -> Event {
    let event = Event::default().data(data);
    match name {
        Some(name) => event.event(name),
        None => event,
    }
}
