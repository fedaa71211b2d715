//! The handle that callers hold: submit a request, hear its events.
//!
//! As many threads as requests may run at once take those that are next and run each over the backend.
//! Callers talk to them through a bounded queue and hear back through a channel each, so that neither a slow reader nor
//! one that left holds up the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use model::{ChatTemplate, Ranking, Tokenizer};
use tokio::sync::mpsc;

use crate::backend::{Backend, CacheUse};
use crate::details::ModelDetails;
use crate::queue::{Queue, Terms};
use crate::request::{EngineError, Event, Request, SubmitError};
use crate::run::{self, CallState, Caller};
use crate::validate;

/// How often an idle engine looks after its ranks.
const IDLE_CHECK: Duration = Duration::from_millis(250);
/// Tokens that a request is taken to generate, at most, when clients take turns. Few generate as many as they may.
const LIKELY_ANSWER: usize = 256;
/// How much the latest request counts in how long requests run.
const LATEST: f64 = 0.2;
/// Longest time after which a client that found the queue full is asked to try again.
const RETRY_MAX: f64 = 60.0;

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
    /// How it ranks documents, if it is a reranker.
    pub ranking: Option<Arc<Ranking>>,
    /// Tokens that prompt and answer together may take.
    pub context: usize,
    /// What its checkpoint says of itself.
    pub details: ModelDetails,
}

/// Bounds on what may wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests that run at once; those beyond wait. At least one.
    pub running: usize,
    /// Requests that may wait behind the running ones.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { running: 1, waiting: 64 }
    }
}

/// What the engine is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// How much of the KV cache is in use.
    pub cache: CacheUse,
    /// Why the engine stopped, if it did.
    pub failure: Option<String>,
}

/// A running model. Clones share it; it stops when the last clone is dropped or `shutdown` is called.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Dropped with the last clone of the engine, which then stops the threads.
    _stopper: Arc<Stopper>,
}

impl Engine {
    /// Starts the engine's threads over `backend`.
    ///
    /// # Panics
    /// When the operating system refuses a thread, as `std::thread::spawn` does.
    pub fn start(model: ModelInfo, limits: Limits, backend: Box<dyn Backend>) -> Self {
        let backend: Arc<dyn Backend> = Arc::from(backend);
        let shared = Arc::new(Shared {
            model,
            backend: Arc::downgrade(&backend),
            limits,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
        });
        let threads = (0..limits.running.max(1)).map(|_| {
            let (shared, backend) = (Arc::clone(&shared), Arc::clone(&backend));
            std::thread::spawn(move || serve(&shared, &*backend))
        });
        let stopper = Stopper { shared: Arc::clone(&shared), threads: Mutex::new(threads.collect()) };
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
        let state = Arc::new(CallState::default());
        let caller = Caller { events, state: Arc::clone(&state), submitted: Instant::now() };
        self.shared.enqueue(Submission { request, caller })?;
        Ok(Generation { receiver, canceller: Canceller { state, shared: Arc::clone(&self.shared) } })
    }

    /// How many requests may run at once.
    pub fn parallel(&self) -> usize {
        self.shared.limits.running.max(1)
    }

    /// What the engine is doing now.
    pub fn status(&self) -> Status {
        let state = self.shared.lock();
        let cache = self.shared.backend.upgrade().map_or_else(CacheUse::default, |backend| backend.cache());
        let (running, waiting, failure) = (state.running, state.waiting.len(), state.failure.clone());
        Status { running, waiting, cache, failure }
    }

    /// When a place in a full queue is likely to become free, in whole seconds.
    pub fn retry_after(&self) -> Duration {
        self.shared.retry_after(&self.shared.lock())
    }

    /// Refuses new requests, fails those that wait, cancels those that run, stops the ranks, and returns when all of
    /// that is done.
    pub fn shutdown(&self) {
        self._stopper.stop();
    }
}

/// A request under way.
pub struct Generation {
    receiver: mpsc::Receiver<Event>,
    canceller: Canceller,
}

impl Generation {
    /// The next event; `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }

    /// The same for callers that wait for several generations at once.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.receiver.poll_recv(context)
    }

    /// The same for callers outside an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.receiver.blocking_recv()
    }

    /// Whether its turn has come.
    pub fn has_begun(&self) -> bool {
        self.canceller.state.begun.load(Ordering::Relaxed)
    }

    /// A switch that stops this generation from elsewhere, for example when there was an interrupt. The events then end
    /// with `Done` and the finish reason `Cancelled`.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}

/// Stops a generation; see [`Generation::canceller`].
#[derive(Clone)]
pub struct Canceller {
    state: Arc<CallState>,
    shared: Arc<Shared>,
}

impl Canceller {
    /// Asks the engine to stop at the next token. A request that waits leaves the queue at once.
    pub fn cancel(&self) {
        let already = self.state.cancelled.swap(true, Ordering::Relaxed);
        if !already && !self.state.begun.load(Ordering::Relaxed) {
            self.shared.withdraw();
        }
    }
}

struct Submission {
    request: Request,
    caller: Caller,
}

#[derive(Default)]
struct State {
    waiting: Queue<Submission>,
    running: usize,
    /// Seconds that requests have run lately.
    run_seconds: f64,
    failure: Option<String>,
}

struct Shared {
    model: ModelInfo,
    /// Lives as long as the threads that run requests over it.
    backend: Weak<dyn Backend>,
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    started: Instant,
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
        // Those for which there is a place among the running ones do not wait, they are about to begin.
        let beginning = self.limits.running.max(1).saturating_sub(state.running);
        let terms = terms(&submission.request);
        if !state.waiting.has_place(&terms.client, self.limits.waiting + beginning) {
            let waiting = state.waiting.len();
            return Err(SubmitError::QueueFull { waiting, retry_after: self.retry_after(&state) });
        }
        state.waiting.push(terms, self.started.elapsed(), submission);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The next submission, `None` after [`IDLE_CHECK`] without one.
    fn next(&self) -> Option<Submission> {
        let mut state = self.lock();
        if state.waiting.len() == 0 && !self.stopping.load(Ordering::Relaxed) {
            let waited = self.changed.wait_timeout(state, IDLE_CHECK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let submission = state.waiting.pop(self.started.elapsed());
        if let Some(Submission { caller, .. }) = &submission {
            state.running += 1;
            caller.state.begun.store(true, Ordering::Relaxed);
        }
        submission
    }

    /// Takes those out of the queue whose callers have left.
    fn withdraw(&self) {
        let left = self.lock().waiting.withdraw(|waiting| waiting.caller.has_left());
        for Submission { request, caller } in left {
            run::cancel(&request, &caller);
        }
    }

    /// When the next of those that wait is likely to begin, so that there is a place again.
    fn retry_after(&self, state: &State) -> Duration {
        let seconds = state.run_seconds / self.limits.running.max(1) as f64;
        Duration::from_secs_f64(seconds.ceil().clamp(1.0, RETRY_MAX))
    }

    fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }
}

/// What a request is in the queue.
fn terms(request: &Request) -> Terms {
    let answer = request.max_tokens.unwrap_or(LIKELY_ANSWER).min(LIKELY_ANSWER);
    Terms { client: request.client.as_str().into(), priority: request.priority, cost: request.prompt.len() + answer }
}

/// Stops the engine's threads once, from `shutdown` or when the last handle goes.
struct Stopper {
    shared: Arc<Shared>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Stopper {
    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic of one of the engine's threads was already reported by the panic hook; there is nobody else to tell.
            let _ = thread.join();
        }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One of the engine's threads: one request after the other until told to stop or until a rank is lost.
fn serve(shared: &Shared, backend: &dyn Backend) {
    let _guard = FailOnPanic { shared };
    let ended = loop {
        if shared.has_failed() {
            // Another thread has told everybody.
            return;
        }
        if shared.stopping.load(Ordering::Relaxed) {
            break EngineError::ShutDown;
        }
        let result = match shared.next() {
            Some(Submission { request, caller }) => {
                let _running = Running { shared, since: Instant::now() };
                let result = run::run(&shared.model, backend, &request, &caller, &shared.stopping);
                if let Err(error) = &result {
                    // Who hears of it may ask at once whether the engine runs.
                    fail_waiting(shared, error);
                    caller.send(Event::Failed(error.clone()));
                }
                result
            }
            None => backend.check(),
        };
        if let Err(error) = result {
            break error;
        }
    };
    fail_waiting(shared, &ended);
}

/// Tells everybody who waits that nothing more will come.
fn fail_waiting(shared: &Shared, error: &EngineError) {
    let mut state = shared.lock();
    if state.failure.is_none() && *error != EngineError::ShutDown {
        tracing::error!("the engine has stopped: {error}");
    }
    state.failure.get_or_insert_with(|| error.to_string());
    for submission in state.waiting.drain() {
        submission.caller.send(Event::Failed(error.clone()));
    }
}

/// Counts a request as running until dropped.
struct Running<'a> {
    shared: &'a Shared,
    since: Instant,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.running -= 1;
        state.run_seconds += LATEST * (self.since.elapsed().as_secs_f64() - state.run_seconds);
    }
}

/// Turns a panic of one of the engine's threads into a failure that callers can see, instead of a queue that nobody serves.
struct FailOnPanic<'a> {
    shared: &'a Shared,
}

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = EngineError::RankFailed { rank: 0, message: "a thread of the engine panicked".to_owned() };
            fail_waiting(self.shared, &error);
        }
    }
}
