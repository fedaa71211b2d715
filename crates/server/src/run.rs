//! Carries out a plan: one generation after the other, with deadline, shutdown and metrics.

use std::mem::{replace, take};
use std::sync::Arc;
use std::time::Duration;

use engine::{Completion, Event, FinishReason, Generation, SubmitError, TokenInfo};
use tokio::time::Instant;

use crate::app::App;
use crate::error::{ApiError, Code};
use crate::metrics::Meter;
use crate::plan::Plan;

/// How long the second and later generations of a plan wait for a place in a full queue.
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
    plan: Plan,
    /// Index of the generation that runs, or is to be submitted next.
    index: usize,
    current: Option<Current>,
    deadline: Option<Instant>,
}

/// The generation that runs.
struct Current {
    generation: Generation,
    meter: Meter,
    /// Whether `Queued` was reported.
    announced: bool,
}

impl Run {
    /// Submits the first generation, so that a refusal is known before an answer begins.
    pub(crate) fn start(app: Arc<App>, plan: Plan) -> Result<Self, ApiError> {
        let deadline = app.options.request_timeout.map(|timeout| Instant::now() + timeout);
        let mut run = Self { app, plan, index: 0, current: None, deadline };
        run.current = Some(run.submit().map_err(|error| ApiError::refused(&error, run.plan.prompt_field))?);
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
        let timed_out = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // In this order, so that a generation that always has news cannot outrun its bounds.
            biased;
            // An error means that the sender is gone, and with it the server.
            _ = stopping.wait_for(|&stopping| stopping) => Err(shutting_down()),
            () = timed_out => {
                Err(ApiError::new(Code::GenerationTimeout, "the answer took longer than this server allows"))
            }
            progress = self.advance() => progress,
        }
    }

    async fn advance(&mut self) -> Result<Option<(usize, Progress)>, ApiError> {
        let index = self.index;
        if index == self.plan.len() {
            return Ok(None);
        }
        let current = match self.current.take() {
            Some(current) => self.current.insert(current),
            None => {
                let submitted = self.submit_patiently().await?;
                self.current.insert(submitted)
            }
        };
        if !replace(&mut current.announced, true) {
            return Ok(Some((index, Progress::Queued)));
        }
        let progress = match current.generation.next().await {
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
            Some(Event::Done(completion)) => {
                current.meter.done(&completion);
                self.current = None;
                self.index += 1;
                Progress::Done(completion)
            }
            Some(Event::Failed(error)) => {
                current.meter.failed();
                return Err(ApiError::from(&error));
            }
            None => return Err(ApiError::new(Code::EngineFailed, "the engine stopped before the answer was complete")),
        };
        Ok(Some((index, progress)))
    }

    fn submit(&self) -> Result<Current, SubmitError> {
        let generation = self.app.engine.submit(self.plan.request(self.index))?;
        Ok(Current { generation, meter: self.app.metrics.meter(), announced: false })
    }

    /// Submits a later generation. What was generated so far would be lost if a queue that is full at the moment
    /// failed the whole request, so this waits for a place.
    async fn submit_patiently(&self) -> Result<Current, ApiError> {
        let patience = Instant::now() + QUEUE_PATIENCE;
        loop {
            match self.submit() {
                Err(SubmitError::QueueFull { .. }) if Instant::now() < patience => {
                    tokio::time::sleep(QUEUE_RETRY).await;
                }
                result => return result.map_err(|error| ApiError::refused(&error, self.plan.prompt_field)),
            }
        }
    }

    /// Carries out the whole plan and returns it with one answer per generation.
    pub(crate) async fn collect(mut self) -> Result<(Plan, Vec<Answer>), ApiError> {
        let mut answers = Vec::new();
        let (mut prompt, mut text, mut tokens) = (Vec::new(), String::new(), Vec::new());
        while let Some((_, progress)) = self.next().await? {
            match progress {
                Progress::Queued => {}
                Progress::Prompt(evaluated) => prompt = evaluated,
                Progress::Text(more, behind) => {
                    text.push_str(&more);
                    tokens.extend(behind);
                }
                Progress::Done(completion) => {
                    let (prompt, text, tokens) = (take(&mut prompt), take(&mut text), take(&mut tokens));
                    answers.push(Answer { prompt, text, tokens, completion });
                }
            }
        }
        Ok((self.plan, answers))
    }
}

fn shutting_down() -> ApiError {
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
