//! Time-outs that may change while the server runs.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How long requests may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest time one request may take, queueing included; `None` sets no bound.
    pub request: Option<Duration>,
    /// Longest time a request may wait for its turn, before it fails with status 503; `None` sets no bound.
    pub queue: Option<Duration>,
    /// How long running requests may go on after the shutdown signal before they are cancelled.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { request: None, queue: None, drain: Duration::from_secs(30) }
    }
}

/// The time-outs of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SharedTimeouts(Arc<RwLock<Timeouts>>);

impl From<Timeouts> for SharedTimeouts {
    fn from(timeouts: Timeouts) -> Self {
        Self(Arc::new(RwLock::new(timeouts)))
    }
}

impl SharedTimeouts {
    /// As they are now.
    pub fn get(&self) -> Timeouts {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// These from now on. Requests under way keep the ones that they began with.
    pub fn replace(&self, timeouts: Timeouts) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = timeouts;
    }
}
