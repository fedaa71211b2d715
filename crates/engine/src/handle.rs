//! The handle that callers hold: submit a request, hear its events.
//!
//! One thread owns the backend and runs requests in the order of their arrival. Callers talk to it through a bounded
//! queue and hear back through a channel each, so that neither a slow reader nor one that left holds up the others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::{ChatTemplate, Tokenizer};
use tokio::sync::mpsc;

use crate::backend::Backend;
use crate::request::{EngineError, Event, Request, SubmitError};
use crate::run::{self, Caller};
use crate::validate;

/// How often an idle engine looks after its ranks.
const IDLE_CHECK: Duration = Duration::from_millis(250);

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
pub struct Engine {
    shared: Arc<Shared>,
    /// Dropped with the last clone of the engine, which then stops the thread.
    _stopper: Arc<Stopper>,
}

impl Engine {
    /// Starts the engine's thread over `backend`.
    ///
    /// # Panics
    /// When the operating system refuses a thread, as `std::thread::spawn` does.
    pub fn start(model: ModelInfo, limits: Limits, backend: Box<dyn Backend>) -> Self {
        let shared = Arc::new(Shared {
            model,
            limits,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::spawn(move || serve(&worker, backend));
        let stopper = Stopper { shared: Arc::clone(&shared), thread: Mutex::new(Some(thread)) };
        Self { shared, _stopper: Arc::new(stopper) }
    }

    /// The model that runs.
    pub fn model(&self) -> &ModelInfo {
        &self.shared.model
    }

    /// Puts `request` into the queue. Dropping the returned generation cancels it.
    ///
    /// # Errors
    /// When the request cannot run as it stands, the queue is full, or the engine has stopped.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        validate::check(&request, &self.shared.model)?;
        // A channel that holds every event of the longest possible answer never fills, so that the engine never waits
        // for a slow reader; it grows only as events queue up in it.
        let answer = request.max_tokens.unwrap_or(usize::MAX).min(self.shared.model.context);
        let (events, receiver) = mpsc::channel(answer + 4);
        let cancelled = Arc::new(AtomicBool::new(false));
        let caller = Caller { events, cancelled: Arc::clone(&cancelled), submitted: Instant::now() };
        self.shared.enqueue(Submission { request, caller })?;
        Ok(Generation { receiver, cancelled })
    }

    /// What the engine is doing now.
    pub fn status(&self) -> Status {
        let state = self.shared.lock();
        Status { running: state.running, waiting: state.waiting.len(), failure: state.failure.clone() }
    }

    /// Refuses new requests, fails those that wait, cancels the running one, stops the ranks, and returns when all of
    /// that is done.
    pub fn shutdown(&self) {
        self._stopper.stop();
    }
}

/// A request under way.
pub struct Generation {
    receiver: mpsc::Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Generation {
    /// The next event; `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }

    /// The same for callers outside an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.receiver.blocking_recv()
    }

    /// A switch that stops this generation from elsewhere, for example from a signal handler. The events then end with
    /// `Done` and the finish reason `Cancelled`.
    pub fn canceller(&self) -> Canceller {
        Canceller { cancelled: Arc::clone(&self.cancelled) }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Stops a generation; see [`Generation::canceller`].
#[derive(Clone)]
pub struct Canceller {
    cancelled: Arc<AtomicBool>,
}

impl Canceller {
    /// Asks the engine to stop at the next token.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

struct Submission {
    request: Request,
    caller: Caller,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Submission>,
    running: usize,
    failure: Option<String>,
}

struct Shared {
    model: ModelInfo,
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
}

impl Shared {
    /// The state is plain data that no panic can leave half-changed, so a poisoned lock is as good as a clean one.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, submission: Submission) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(SubmitError::NotRunning(failure.clone()));
        }
        if self.stopping.load(Ordering::Relaxed) {
            return Err(SubmitError::NotRunning("it is shutting down".to_owned()));
        }
        // Callers that left while waiting give their places back.
        state.waiting.retain(|waiting| !waiting.caller.has_left());
        if state.waiting.len() >= self.limits.waiting {
            return Err(SubmitError::QueueFull { waiting: state.waiting.len() });
        }
        state.waiting.push_back(submission);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The next submission, `None` after [`IDLE_CHECK`] without one.
    fn next(&self) -> Option<Submission> {
        let mut state = self.lock();
        if state.waiting.is_empty() && !self.stopping.load(Ordering::Relaxed) {
            let waited = self.changed.wait_timeout(state, IDLE_CHECK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let submission = state.waiting.pop_front();
        state.running = usize::from(submission.is_some());
        submission
    }
}

/// Stops the engine's thread once, from `shutdown` or when the last handle goes.
struct Stopper {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Stopper {
    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the engine's thread was already reported by the panic hook; there is nobody else to tell.
            let _ = thread.join();
        }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The engine's thread: requests in order of arrival until told to stop or until a rank is lost.
fn serve(shared: &Shared, mut backend: Box<dyn Backend>) {
    let _guard = FailOnPanic { shared };
    let ended = loop {
        if shared.stopping.load(Ordering::Relaxed) {
            break EngineError::ShutDown;
        }
        let result = match shared.next() {
            Some(Submission { request, caller }) => {
                let result = run::run(&shared.model, &mut *backend, &request, &caller, &shared.stopping);
                shared.lock().running = 0;
                result
            }
            None => backend.check(),
        };
        if let Err(error) = result {
            break error;
        }
    };
    if ended != EngineError::ShutDown {
        tracing::error!("the engine has stopped: {ended}");
    }
    fail_waiting(shared, &ended);
}

/// Tells everybody who waits that nothing more will come.
fn fail_waiting(shared: &Shared, error: &EngineError) {
    let mut state = shared.lock();
    state.failure = Some(error.to_string());
    state.running = 0;
    for submission in state.waiting.drain(..) {
        submission.caller.send(Event::Failed(error.clone()));
    }
}

/// Turns a panic of the engine's thread into a failure that callers can see, instead of a queue that nobody serves.
struct FailOnPanic<'a> {
    shared: &'a Shared,
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = EngineError::RankFailed { rank: 0, message: "the engine's thread panicked".to_owned() };
            fail_waiting(self.shared, &error);
        }
    }
}
