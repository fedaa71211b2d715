//! Carries out a plan: as many generations at a time as the engine runs, with deadline, shutdown and metrics.

use std::collections::{BTreeMap, VecDeque};
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
use crate::tools::{Call, Parser, Part};

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
    /// A call of the tool of this name begins.
    Begin(String),
    /// More of the arguments of the call under way.
    Arguments(String),
    /// The call is complete, or was cut off.
    End,
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
    /// What happened but was not reported yet.
    ready: VecDeque<(usize, Progress)>,
    /// Embeddings that are complete, by generation.
    embeddings: BTreeMap<usize, Vec<f32>>,
    /// Index of the generation to be submitted next.
    next: usize,
    /// Whether the queue was full. That is tried again when a generation of this plan has ended.
    full: bool,
    deadline: Option<Instant>,
    /// When the first generation has waited for too long, as long as nothing was heard of it.
    turn: Option<Instant>,
}

/// A generation under way.
struct Current {
    index: usize,
    generation: Generation,
    /// Finds calls in the text.
    parser: Option<Parser>,
    meter: Meter,
    /// Whether `Queued` was reported.
    announced: bool,
}

impl Run {
    /// Submits the first generation, so that a refusal is known before an answer begins.
    pub(crate) fn start(app: Arc<App>, lease: Arc<Lease>, plan: Plan) -> Result<Self, ApiError> {
        let deadline = lease.deadline();
        let turn = app.options.timeouts.get().queue.and_then(|timeout| Instant::now().checked_add(timeout));
        let (current, ready, embeddings) = (Vec::new(), VecDeque::new(), BTreeMap::new());
        let mut run = Self { app, lease, plan, current, ready, embeddings, next: 0, full: false, deadline, turn };
        run.submit().map_err(|error| run.refused(&error))?;
        Ok(run)
    }

    /// The plan that is carried out.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What happened next, and to which generation; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Progress)>, ApiError> {
        let mut stopping = self.app.stopping.clone();
        loop {
            let (deadline, turn) = (self.deadline, self.turn);
            tokio::select! {
                // In this order, so that a generation that always has news cannot outrun its bounds.
                biased;
                // An error means that the sender is gone, and with it the server.
                _ = stopping.wait_for(|&stopping| stopping) => return Err(shutting_down()),
                () = passing(deadline) => return Err(timed_out()),
                () = passing(turn) => self.check_turn()?,
                progress = self.advance() => return progress,
            }
        }
    }

    /// Fails if no generation has begun.
    fn check_turn(&mut self) -> Result<(), ApiError> {
        self.turn = None;
        if self.current.iter().any(|current| current.generation.has_begun()) {
            return Ok(());
        }
        let message = "the request waited for its turn for longer than this server allows";
        Err(ApiError::new(Code::QueueTimeout, message).retried_after(self.lease.engine().retry_after()))
    }

    async fn advance(&mut self) -> Result<Option<(usize, Progress)>, ApiError> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            self.submit_more().await?;
            if let Some(current) = self.current.iter_mut().find(|current| !current.announced) {
                current.announced = true;
                return Ok(Some((current.index, Progress::Queued)));
            }
            if self.current.is_empty() {
                return Ok(None);
            }
            let (current, event) = poll_fn(|context| self.poll_event(context)).await;
            self.hear(current, event)?;
        }
    }

    /// Takes an event of a generation, which goes on unless it was the last.
    fn hear(&mut self, mut current: Current, event: Option<Event>) -> Result<(), ApiError> {
        let index = current.index;
        self.turn = None;
        match event {
            Some(Event::Prompt(tokens)) => {
                let length = self.plan.prompt(index).len();
                current.meter.prompt(length);
                if self.plan.counts_prompt(index) {
                    self.lease.tally().prompt(length);
                }
                self.ready.push_back((index, Progress::Prompt(tokens)));
            }
            Some(Event::Text { text, tokens }) => {
                current.meter.tokens(tokens.len());
                let parts = current.parser.as_mut().map_or_else(|| vec![Part::Text(text.clone())], |it| it.push(&text));
                self.report(index, parts, tokens);
            }
            Some(Event::Embedding(values)) => {
                self.embeddings.insert(index, values);
            }
            // This server cancels by dropping the generation, so somebody else stopped the engine.
            Some(Event::Done(Completion { finish: FinishReason::Cancelled, .. })) => return Err(shutting_down()),
            Some(Event::Done(Completion { finish: FinishReason::ConstraintFailed, .. })) => {
                current.meter.failed();
                let message = "the form that the answer must have became too complex to follow: make it simpler";
                return Err(ApiError::new(Code::InvalidValue, message));
            }
            Some(Event::Done(completion)) => {
                let parts = current.parser.as_mut().map(Parser::finish).unwrap_or_default();
                self.report(index, parts, Vec::new());
                current.meter.done(&completion);
                self.full = false;
                self.ready.push_back((index, Progress::Done(completion)));
                return Ok(());
            }
            Some(Event::Failed(error)) => {
                current.meter.failed();
                return Err(ApiError::from(&error));
            }
            None => return Err(ApiError::new(Code::EngineFailed, "the engine stopped before the answer was complete")),
        }
        self.current.push(current);
        Ok(())
    }

    /// Reports parts of an answer. The tokens behind them go with the first text, which may be empty.
    fn report(&mut self, index: usize, parts: Vec<Part>, mut tokens: Vec<TokenInfo>) {
        if !tokens.is_empty() && !matches!(parts.first(), Some(Part::Text(_))) {
            self.ready.push_back((index, Progress::Text(String::new(), take(&mut tokens))));
        }
        let progress = parts.into_iter().map(|part| match part {
            Part::Text(text) => Progress::Text(text, take(&mut tokens)),
            Part::Begin(name) => Progress::Begin(name),
            Part::Arguments(text) => Progress::Arguments(text),
            Part::End => Progress::End,
        });
        self.ready.extend(progress.map(|progress| (index, progress)));
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
        let parser = self.plan.calls.map(Parser::new);
        self.current.push(Current { index, generation, parser, meter: self.lease.meter(), announced: false });
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

    /// Carries out a plan of embeddings and returns them in the order of its prompts.
    pub(crate) async fn embeddings(mut self) -> Result<Vec<Vec<f32>>, ApiError> {
        while self.next().await?.is_some() {}
        Ok(self.embeddings.into_values().collect())
    }

    /// Carries out the whole plan and returns it with one answer per generation.
    pub(crate) async fn collect(mut self) -> Result<(Plan, Vec<Answer>), ApiError> {
        let mut drafts: Vec<Draft> = (0..self.plan.len()).map(|_| Draft::default()).collect();
        let mut answers = BTreeMap::new();
        while let Some((index, progress)) = self.next().await? {
            let draft = &mut drafts[index];
            match progress {
                Progress::Queued | Progress::End => {}
                Progress::Prompt(evaluated) => draft.prompt = evaluated,
                Progress::Text(more, behind) => {
                    draft.text.push_str(&more);
                    draft.tokens.extend(behind);
                }
                Progress::Begin(name) => draft.calls.push(Call { name, arguments: String::new() }),
                Progress::Arguments(more) => {
                    draft.calls.iter_mut().last().into_iter().for_each(|call| call.arguments.push_str(&more));
                }
                Progress::Done(completion) => {
                    let Draft { prompt, text, tokens, calls } = take(draft);
                    answers.insert(index, Answer { prompt, text, tokens, calls, completion });
                }
            }
        }
        Ok((self.plan, answers.into_values().collect()))
    }
}

/// A generation under way, as far as it came.
#[derive(Default)]
struct Draft {
    prompt: Vec<TokenInfo>,
    text: String,
    tokens: Vec<TokenInfo>,
    calls: Vec<Call>,
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
    /// The tokens behind all of it.
    pub(crate) tokens: Vec<TokenInfo>,
    /// Calls of tools. The last may be cut off where the answer is.
    pub(crate) calls: Vec<Call>,
    /// How it ended.
    pub(crate) completion: Completion,
}
