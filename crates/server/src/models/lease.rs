//! A model lent to a request.

use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, ModelInfo};
use tokio::time::Instant;

use super::{Models, Shared, State};
use crate::client::Client;
use crate::error::{ApiError, Code};
use crate::metrics::Meter;
use crate::tally::Tally;

/// Most requests that wait for one model to be loaded: each holds its body.
const WAITING_MAX: usize = 64;

/// Whom a model is lent to.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) client: Client,
    /// Where it is counted what its request takes.
    pub(crate) tally: Tally,
    /// When its request has taken too long.
    pub(crate) deadline: Option<Instant>,
}

/// A model in memory, which stays there as long as this lives.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    index: usize,
    engine: Engine,
    waited: Duration,
    asker: Asker,
}

impl Lease {
    /// What runs the model.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model.
    pub(crate) fn model(&self) -> &ModelInfo {
        self.engine.model()
    }

    /// How long the request waited until the model was loaded.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// On whose behalf it is used.
    pub(crate) fn client(&self) -> &str {
        self.asker.client.name()
    }

    /// Where it is counted what the request takes.
    pub(crate) fn tally(&self) -> &Tally {
        &self.asker.tally
    }

    /// When the request has taken too long.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.asker.deadline
    }

    /// A meter for a generation that was just submitted.
    pub(crate) fn meter(&self) -> Meter {
        self.shared.metrics[self.index].meter(self.asker.client.account(), self.asker.tally.clone())
    }

    /// How long the model stays without being used, from now on; as long as there is room if `None`.
    pub(crate) fn keep_for(&self, keep: Option<Duration>) {
        if self.shared.loader.is_some() {
            self.shared.lock().shelf.keep(self.index, keep);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.lock().shelf.give_back(self.index, self.shared.now());
        self.shared.changed.send_replace(());
    }
}

/// A request that waits for a model.
struct Waiter<'a> {
    shared: &'a Shared,
    index: usize,
    /// How often the model could not be loaded when the request came.
    failures: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        // A failure has ended the wait of all who waited then.
        if state.slots[self.index].failures == self.failures {
            state.shelf.wait_no_more(self.index);
        }
        drop(state);
        self.shared.changed.send_replace(());
    }
}

impl Models {
    /// Lends the model of that name, or the first one, once it is in memory. Dropping the future ends the wait.
    ///
    /// # Errors
    /// When there is no such model, it cannot be loaded, or too many wait for it.
    pub(crate) async fn lend(&self, name: Option<&str>, asker: Asker) -> Result<Lease, ApiError> {
        let index = self.find(name)?;
        let shared = &self.shared;
        let asked = shared.now();
        let mut changes = shared.changed.subscribe();
        let mut waiter: Option<Waiter<'_>> = None;
        loop {
            if let Some(engine) = shared.try_lend(index) {
                let waited = if waiter.is_some() { shared.now().saturating_sub(asked) } else { Duration::ZERO };
                asker.tally.lent(&shared.offers[index].id);
                return Ok(Lease { shared: Arc::clone(shared), index, engine, waited, asker });
            }
            match &waiter {
                None => waiter = Some(shared.begin_to_wait(index)?),
                Some(waiter) => shared.check_failure(waiter)?,
            }
            // The sender lives in what `self` holds.
            if changes.changed().await.is_err() {
                return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
            }
        }
    }
}

impl Shared {
    fn try_lend(&self, index: usize) -> Option<Engine> {
        let mut state = self.lock();
        let State { shelf, slots } = &mut *state;
        let engine = slots[index].loaded.as_ref()?.engine();
        // One that has failed can be loaded anew, unless it is the only one: then whoever watches the server has to.
        if self.loader.is_some() && engine.status().failure.is_some() {
            shelf.spoil(index);
            return None;
        }
        shelf.lend(index).then(|| engine.clone())
    }

    fn begin_to_wait(&self, index: usize) -> Result<Waiter<'_>, ApiError> {
        let mut state = self.lock();
        let waiting = state.shelf.waiting(index);
        if waiting >= WAITING_MAX {
            let message = format!("{waiting} requests wait for the model to be loaded already: try again later");
            return Err(ApiError::new(Code::QueueFull, message));
        }
        state.shelf.wait(index);
        let failures = state.slots[index].failures;
        drop(state);
        self.changed.send_replace(());
        Ok(Waiter { shared: self, index, failures })
    }

    /// Fails a request whose model could not be loaded since it has been waiting.
    fn check_failure(&self, waiter: &Waiter<'_>) -> Result<(), ApiError> {
        let state = self.lock();
        let slot = &state.slots[waiter.index];
        if slot.failures == waiter.failures {
            return Ok(());
        }
        let id = &self.offers[waiter.index].id;
        Err(ApiError::new(Code::ModelLoadFailed, format!("the model {id:?} cannot be loaded: {}", slot.failure)))
    }
}
