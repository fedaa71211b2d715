//! Answers that grow while the engine works, whatever the dialect.

use std::collections::VecDeque;

use futures_util::{Stream, stream};
use serde::Serialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::plan::Plan;
use crate::run::{Progress, Run};

/// A piece of a growing answer: a server-sent event, or a line of JSON.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    /// The event's name, where the dialect names its events.
    pub(crate) name: Option<&'static str>,
    /// What it says, without line breaks.
    pub(crate) data: String,
}

impl Piece {
    /// A piece without a name that says `value`.
    pub(crate) fn json(value: &impl Serialize) -> Self {
        // The values of this crate have strings as keys and finite numbers, so that this cannot fail.
        let data = serde_json::to_string(value).unwrap_or_else(|error| Value::from(error.to_string()).to_string());
        Self { name: None, data }
    }

    /// The same with a name.
    pub(crate) fn named(name: &'static str, value: &impl Serialize) -> Self {
        Self { name: Some(name), ..Self::json(value) }
    }
}

/// A dialect's way to write an answer piece by piece.
pub(crate) trait Writer: Send + 'static {
    /// The pieces for what happened to generation `index` of `plan`.
    fn progress(&mut self, plan: &Plan, index: usize, progress: Progress) -> Vec<Piece>;

    /// The pieces after the last generation.
    fn end(&mut self) -> Vec<Piece>;

    /// The last pieces of an answer that fails. Nothing in them may let it pass for complete.
    fn failed(&mut self, error: &ApiError) -> Vec<Piece>;
}

/// The pieces of `run` as `writer` writes them.
///
/// The run lives in the stream, and the stream in the body of the response, so that a client that goes away drops and
/// cancels it.
pub(crate) fn pieces(run: Run, writer: impl Writer) -> impl Stream<Item = Piece> + Send {
    let growing = Growing { run: Some(run), writer, ready: VecDeque::new() };
    stream::unfold(growing, |mut growing| async {
        let piece = growing.next().await?;
        Some((piece, growing))
    })
}

struct Growing<W> {
    /// `None` once the last pieces are written.
    run: Option<Run>,
    writer: W,
    ready: VecDeque<Piece>,
}

impl<W: Writer> Growing<W> {
    async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            let run = self.run.as_mut()?;
            let pieces = match run.next().await {
                Ok(Some((index, progress))) => self.writer.progress(run.plan(), index, progress),
                last => {
                    self.run = None;
                    match last {
                        Err(error) => self.writer.failed(&error),
                        Ok(_) => self.writer.end(),
                    }
                }
            };
            self.ready.extend(pieces);
        }
    }
}
