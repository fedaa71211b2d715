//! The handle that callers hold: submit a request, hear its events.

use std::sync::Arc;

use model::{ChatTemplate, Tokenizer};

use crate::backend::Backend;
use crate::request::{Event, Request, SubmitError};

/// What callers may know of the model that runs.
#[derive(Clone)]
pub struct ModelInfo {
    /// Name under which clients ask for it, for example `smollm2`.
    pub id: String,
    /// Seconds since the Unix epoch at which it was loaded.
    pub created: u64,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, where the checkpoint carries one.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Tokens that prompt and answer together may take.
    pub context: usize,
}

/// Bounds on what may wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests that may wait behind the running one.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { waiting: 64 }
    }
}

/// What the engine is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Why the engine stopped, if it did.
    pub failure: Option<String>,
}

/// A running model. Clones share it; it stops when the last clone is dropped or `shutdown` is called.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Starts the engine's thread over `backend`.
    pub fn start(_model: ModelInfo, _limits: Limits, _backend: Box<dyn Backend>) -> Self {
        unimplemented!()
    }

    /// The model that runs.
    pub fn model(&self) -> &ModelInfo {
        unimplemented!()
    }

    /// Puts `request` into the queue. Dropping the returned generation cancels it.
    ///
    /// # Errors
    /// When the request cannot run as it stands, the queue is full, or the engine has stopped.
    pub fn submit(&self, _request: Request) -> Result<Generation, SubmitError> {
        unimplemented!()
    }

    /// What the engine is doing now.
    pub fn status(&self) -> Status {
        unimplemented!()
    }

    /// Refuses new requests, fails those that wait, cancels the running one, and stops the ranks.
    pub fn shutdown(&self) {
        unimplemented!()
    }
}

/// A request under way.
pub struct Generation {}

impl Generation {
    /// The next event; `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// The same for callers outside an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        unimplemented!()
    }
}
