//! Carries out a plan: as many generations at a time as the engine runs, with deadline, shutdown and metrics.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::mem::take;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::{Completion, Event, FinishReason, Generation, Request, SubmitError, TokenInfo};
use tokio::time::Instant;

use crate::app::App;
use crate::error::{ApiError, Code};
use crate::metrics::Meter;
use crate::models::Lease;
use crate::plan::Plan;

/// How long a generation other than a plan's first waits for a place in a full queue, with none of the plan under way.
const QUEUE_PATIENCE: Duration = Duration::from_secs(30);
const QUEUE_RETRY: Duration = Duration::from_millis(50);

/// What happens to one generation.
#[derive(Debug, PartialEq)]
pub(crate) enum Progress {
    /// It is queued.
    Queued,
    /// Its prompt was evaluated; the tokens are there where asked for.
    Prompt(Vec<TokenInfo>),
    /// New text and the tokens behind it.
    Text(String, Vec<TokenInfo>),
    /// It ended well.
    Done(Completion),
}

/// A plan under way. Dropping it cancels what runs.
pub(crate) struct Run {
    app: Arc<App>,
    /// Keeps the model in memory until the run is over.
    lease: Arc<Lease>,
    plan: Plan,
    /// Generations under way, the one first that has waited longest for its turn to be heard.
    current: Vec<Current>,
    /// Index of the generation to be submitted next.
    next: usize,
    /// Whether the queue was full. That is tried again when a generation of this plan has ended.
    full: bool,
    deadline: Option<Instant>,
}

/// A generation under way.
struct Current {
    index: usize,
    generation: Generation,
    meter: Meter,
    /// Whether `Queued` was reported.
    announced: bool,
}

impl Run {
    /// Submits the first generation, so that a refusal is known before an answer begins.
    pub(crate) fn start(app: Arc<App>, lease: Arc<Lease>, plan: Plan) -> Result<Self, ApiError> {
        let deadline = lease.deadline();
        let mut run = Self { app, lease, plan, current: Vec::new(), next: 0, full: false, deadline };
        run.submit().map_err(|error| run.refused(&error))?;
        Ok(run)
    }

    /// The plan that is carried out.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What happened next, and to which generation; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Progress)>, ApiError> {
        let deadline = self.deadline;
        let mut stopping = self.app.stopping.clone();
        tokio::select! {
            // In this order, so that a generation that always has news cannot outrun its bounds.
            biased;
            // An error means that the sender is gone, and with it the server.
            _ = stopping.wait_for(|&stopping| stopping) => Err(shutting_down()),
            () = passing(deadline) => Err(timed_out()),
            progress = self.advance() => progress,
        }
    }

    async fn advance(&mut self) -> Result<Option<(usize, Progress)>, ApiError> {
        self.submit_more().await?;
        if let Some(current) = self.current.iter_mut().find(|current| !current.announced) {
            current.announced = true;
            return Ok(Some((current.index, Progress::Queued)));
        }
        if self.current.is_empty() {
            return Ok(None);
        }
        let (mut current, event) = poll_fn(|context| self.poll_event(context)).await;
        let index = current.index;
        let progress = match event {
            Some(Event::Prompt(tokens)) => {
                current.meter.prompt(self.plan.prompt(index).len());
                Progress::Prompt(tokens)
            }
            Some(Event::Text { text, tokens }) => {
                current.meter.tokens(tokens.len());
                Progress::Text(text, tokens)
            }
            // This server cancels by dropping the generation, so somebody else stopped the engine.
            Some(Event::Done(Completion { finish: FinishReason::Cancelled, .. })) => return Err(shutting_down()),
            Some(Event::Done(Completion { finish: FinishReason::ConstraintFailed, .. })) => {
                current.meter.failed();
                let message = "the form that the answer must have became too complex to follow: make it simpler";
                return Err(ApiError::new(Code::InvalidValue, message));
            }
            Some(Event::Done(completion)) => {
                current.meter.done(&completion);
                self.full = false;
                return Ok(Some((index, Progress::Done(completion))));
            }
            Some(Event::Failed(error)) => {
                current.meter.failed();
                return Err(ApiError::from(&error));
            }
            None => return Err(ApiError::new(Code::EngineFailed, "the engine stopped before the answer was complete")),
        };
        self.current.push(current);
        Ok(Some((index, progress)))
    }

    /// The next event of any generation, which is taken out for it and has its next turn last.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<(Current, Option<Event>)> {
        for place in 0..self.current.len() {
            if let Poll::Ready(event) = self.current[place].generation.poll_next(context) {
                return Poll::Ready((self.current.remove(place), event));
            }
        }
        Poll::Pending
    }

    fn submit(&mut self) -> Result<(), SubmitError> {
        let index = self.next;
        let request = Request { client: self.lease.client().to_owned(), ..self.plan.request(index) };
        let generation = self.lease.engine().submit(request)?;
        self.current.push(Current { index, generation, meter: self.lease.meter(), announced: false });
        self.next += 1;
        Ok(())
    }

    /// Submits as many generations as the engine runs at once. What was generated so far would be lost if a queue that is
    /// full at the moment failed the whole request, so with none under way this waits for a place.
    async fn submit_more(&mut self) -> Result<(), ApiError> {
        let patience = Instant::now() + QUEUE_PATIENCE;
        while self.next < self.plan.len() && self.current.len() < self.lease.engine().parallel() && !self.full {
            match self.submit() {
                Err(SubmitError::QueueFull { .. }) if !self.current.is_empty() => self.full = true,
                Err(SubmitError::QueueFull { .. }) if Instant::now() < patience => {
                    tokio::time::sleep(QUEUE_RETRY).await;
                }
                result => result.map_err(|error| self.refused(&error))?,
            }
        }
        Ok(())
    }

    fn refused(&self, error: &SubmitError) -> ApiError {
        ApiError::refused(error, self.plan.prompt_field)
    }

    /// Carries out the whole plan and returns it with one answer per generation.
    pub(crate) async fn collect(mut self) -> Result<(Plan, Vec<Answer>), ApiError> {
        let mut drafts: Vec<_> = (0..self.plan.len()).map(|_| (Vec::new(), String::new(), Vec::new())).collect();
        let mut answers = BTreeMap::new();
        while let Some((index, progress)) = self.next().await? {
            let (prompt, text, tokens) = &mut drafts[index];
            match progress {
                Progress::Queued => {}
                Progress::Prompt(evaluated) => *prompt = evaluated,
                Progress::Text(more, behind) => {
                    text.push_str(&more);
                    tokens.extend(behind);
                }
                Progress::Done(completion) => {
                    let (prompt, text, tokens) = take(&mut drafts[index]);
                    answers.insert(index, Answer { prompt, text, tokens, completion });
                }
            }
        }
        Ok((self.plan, answers.into_values().collect()))
    }
}

/// Waits until `deadline` has passed.
pub(crate) async fn passing(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pub(crate) fn timed_out() -> ApiError {
    let message = "the answer took longer than this server, or the request itself, allows";
    ApiError::new(Code::GenerationTimeout, message)
}

pub(crate) fn shutting_down() -> ApiError {
    ApiError::new(Code::ShuttingDown, "the server is shutting down: send the request again when it is back")
}

/// A whole generation.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Tokens of the prompt, where asked for.
    pub(crate) prompt: Vec<TokenInfo>,
    /// The text.
    pub(crate) text: String,
    /// The tokens behind it.
    pub(crate) tokens: Vec<TokenInfo>,
    /// How it ended.
    pub(crate) completion: Completion,
}
