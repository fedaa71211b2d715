//! Answers that grow: server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use crate::error::ApiError;
use crate::plan::Plan;
use crate::run::{Progress, Run};

/// A dialect's way to write progress as stream events.
pub(crate) trait Chunks: Send + 'static {
    /// What the dialect sends in one event.
    type Chunk: Serialize;

    /// The event for what happened to generation `index` of `plan`, where it is worth one.
    fn chunk(&mut self, plan: &Plan, index: usize, progress: Progress) -> Option<Self::Chunk>;

    /// The event after the last generation, where the dialect has one.
    fn last(&mut self) -> Option<Self::Chunk>;
}

/// Streams `run` as `chunks` write it, ended by `[DONE]` or by an error event.
///
/// The run lives in the body of the response, so that a client that goes away drops and cancels it.
pub(crate) fn respond(run: Run, chunks: impl Chunks, keep_alive: Duration) -> Response {
    let writer = Writer { stage: Stage::Running(Box::new(run)), chunks };
    let events = stream::unfold(writer, |mut writer| async {
        let event = writer.next().await?;
        Some((Ok::<_, Infallible>(event), writer))
    });
    let keep_alive = KeepAlive::new().interval(keep_alive).text("keep-alive");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Proxies such as nginx would otherwise collect the stream before they pass it on.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

enum Stage {
    Running(Box<Run>),
    Last,
    Marker,
    Ended,
}

struct Writer<C> {
    stage: Stage,
    chunks: C,
}

impl<C: Chunks> Writer<C> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            match &mut self.stage {
                Stage::Running(run) => match run.next().await {
                    Ok(Some((index, progress))) => {
                        if let Some(chunk) = self.chunks.chunk(run.plan(), index, progress) {
                            return Some(self.write(&chunk));
                        }
                    }
                    Ok(None) => self.stage = Stage::Last,
                    Err(error) => return Some(self.fail(&error)),
                },
                Stage::Last => {
                    self.stage = Stage::Marker;
                    if let Some(chunk) = self.chunks.last() {
                        return Some(self.write(&chunk));
                    }
                }
                Stage::Marker => {
                    self.stage = Stage::Ended;
                    return Some(Event::default().data("[DONE]"));
                }
                Stage::Ended => return None,
            }
        }
    }

    /// An event with `value`, or the error event where it cannot be written as JSON.
    fn write(&mut self, value: &impl Serialize) -> Event {
        match Event::default().json_data(value) {
            Ok(event) => event,
            Err(error) => {
                self.stage = Stage::Ended;
                Event::default().data(error.to_string())
            }
        }
    }

    /// The last event of a stream that fails. No end marker follows, so that nobody takes the answer for complete.
    fn fail(&mut self, error: &ApiError) -> Event {
        self.stage = Stage::Ended;
        self.write(&error.body())
    }
}
