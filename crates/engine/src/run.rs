//! One request from prompt to last event: tokens in from the backend, text out to the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::backend::{Backend, Flow, Observer};
use crate::handle::ModelInfo;
use crate::request::{Completion, Drafts, EngineError, Event, FinishReason, Request, Timings, TokenInfo};
use crate::text::TextFilter;

/// Who asked, and how to reach them.
pub(crate) struct Caller {
    /// Holds every event the answer can have, so that sending never waits.
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) state: Arc<CallState>,
    pub(crate) submitted: Instant,
}

/// What the caller and the engine let each other know without events.
#[derive(Default)]
pub(crate) struct CallState {
    /// The caller does not want the answer any more.
    pub(crate) cancelled: AtomicBool,
    /// The request does not wait any more.
    pub(crate) begun: AtomicBool,
}

impl Caller {
    pub(crate) fn send(&self, event: Event) {
        // An error means that the caller dropped its end; `has_left` then says so and the run stops.
        let _ = self.events.try_send(event);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.state.cancelled.load(Ordering::Relaxed) || self.events.is_closed()
    }
}

/// Runs `request` and sends all its events; of an error it is for the caller to tell.
pub(crate) fn run(
    model: &ModelInfo,
    backend: &dyn Backend,
    request: &Request,
    caller: &Caller,
    stopping: &AtomicBool,
) -> Result<(), EngineError> {
    if caller.has_left() {
        cancel(request, caller);
        return Ok(());
    }
    let queue_ms = milliseconds_since(caller.submitted);
    let mut listener = Listener {
        model,
        caller,
        stopping,
        filter: TextFilter::new(&request.stop),
        cached: 0,
        generated: 0,
        first_token_ms: None,
        stop_text: None,
    };
    let outcome = backend.generate(request, &mut listener)?;
    let finish = listener.finish(outcome.finish);
    let ttft_ms = listener.first_token_ms.unwrap_or_else(|| milliseconds_since(caller.submitted));
    caller.send(Event::Done(Completion {
        finish,
        stop_text: listener.stop_text.take(),
        prompt_tokens: request.prompt.len(),
        cached_tokens: listener.cached,
        completion_tokens: listener.generated,
        timings: Timings { queue_ms, prefill_ms: outcome.prefill_ms, decode_ms: outcome.decode_ms, ttft_ms },
        drafts: outcome.drafts,
        ranks: outcome.ranks,
    }));
    Ok(())
}

fn milliseconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}

/// Ends a request that was cancelled while it waited.
pub(crate) fn cancel(request: &Request, caller: &Caller) {
    caller.send(Event::Done(Completion {
        finish: FinishReason::Cancelled,
        stop_text: None,
        prompt_tokens: request.prompt.len(),
        cached_tokens: 0,
        completion_tokens: 0,
        timings: Timings { queue_ms: milliseconds_since(caller.submitted), ..Timings::default() },
        drafts: Drafts::default(),
        ranks: Vec::new(),
    }));
}

/// Turns what the backend reports into what the caller hears.
struct Listener<'a> {
    model: &'a ModelInfo,
    caller: &'a Caller,
    stopping: &'a AtomicBool,
    filter: TextFilter,
    cached: usize,
    generated: usize,
    first_token_ms: Option<f64>,
    stop_text: Option<String>,
}

impl Listener<'_> {
    /// Releases what was held back, and settles why the generation ended.
    fn finish(&mut self, backend_says: FinishReason) -> FinishReason {
        if self.stop_text.is_some() {
            return FinishReason::Stop;
        }
        let (text, tokens) = self.filter.finish();
        if !text.is_empty() || !tokens.is_empty() {
            self.caller.send(Event::Text { text, tokens });
        }
        backend_says
    }
}

impl Observer for Listener<'_> {
    fn prompt(&mut self, tokens: Vec<TokenInfo>, cached: usize) -> Flow {
        self.cached = cached;
        self.caller.send(Event::Prompt(tokens));
        self.flow()
    }

    fn embedding(&mut self, values: Vec<f32>) -> Flow {
        self.caller.send(Event::Embedding(values));
        self.flow()
    }

    fn token(&mut self, token: TokenInfo) -> Flow {
        self.generated += 1;
        self.first_token_ms.get_or_insert_with(|| milliseconds_since(self.caller.submitted));
        let tokenizer = &self.model.tokenizer;
        // The text of an end-of-text token is markup, never part of the answer. The token itself is reported: whoever
        // counts tokens or scores log-probabilities needs it. Whether it ends the run is the backend's to say.
        let bytes_of = |id| if tokenizer.is_end_of_generation(id) { &[][..] } else { tokenizer.token_bytes(id) };
        let released = self.filter.push(token, bytes_of);
        self.stop_text = released.stop;
        if !released.text.is_empty() || !released.tokens.is_empty() {
            self.caller.send(Event::Text { text: released.text, tokens: released.tokens });
        }
        if self.stop_text.is_some() { Flow::Stop } else { self.flow() }
    }

    fn flow(&mut self) -> Flow {
        if self.caller.has_left() || self.stopping.load(Ordering::Relaxed) { Flow::Stop } else { Flow::Continue }
    }
}
