//! What turns tokens into tokens: a group of ranks, or a script in tests.

use crate::request::{Drafts, EngineError, FinishReason, RankStatistics, Request, TokenInfo};

/// Runs requests, each on the thread that asks for it.
pub trait Backend: Send + Sync {
    /// Runs `request` to its end and reports to `observer` on the way.
    ///
    /// Text-level matters (stop strings, UTF-8) are the engine's; the backend ends at an end-of-generation token, at
    /// `max_tokens`, at the end of the context, or soon after the observer asks it to stop.
    ///
    /// # Errors
    /// When a rank is lost or fails. The backend is then dead: every later call fails too.
    fn generate(&self, request: &Request, observer: &mut dyn Observer) -> Result<Outcome, EngineError>;

    /// Called now and then by a thread that has nothing to run, so that a dead rank is noticed before the next request.
    ///
    /// # Errors
    /// When a rank is lost.
    fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// How much of the KV cache is in use, as far as it is known.
    fn cache(&self) -> CacheUse {
        CacheUse::default()
    }
}

/// How much of the KV cache is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CacheUse {
    /// Blocks that requests under way use, and blocks that there are.
    pub used: usize,
    /// All blocks.
    pub blocks: usize,
    /// How often a request had to make room for others.
    pub preemptions: u64,
}

/// What the observer wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop: the answer is complete, or nobody listens any more.
    Stop,
}

/// Hears what a backend does.
pub trait Observer {
    /// The prompt was evaluated, `cached` tokens of it from the KV cache. `tokens` is empty unless the request asked
    /// for `prompt_logprobs`.
    fn prompt(&mut self, tokens: Vec<TokenInfo>, cached: usize) -> Flow;
    /// The embedding of the prompt is known.
    fn embedding(&mut self, values: Vec<f32>) -> Flow;
    /// A token was drawn.
    fn token(&mut self, token: TokenInfo) -> Flow;
    /// Polled while the backend waits (several times a second), so that a caller that left frees the ranks.
    fn flow(&mut self) -> Flow;
}

/// How a run of a backend ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub finish: FinishReason,
    /// Milliseconds from the start to the first token (or to the end of the prompt).
    pub prefill_ms: f64,
    /// Milliseconds from the first token to the last.
    pub decode_ms: f64,
    /// What came of drafts.
    pub drafts: Drafts,
    /// How each rank spent the time; see [`crate::Completion`].
    pub ranks: Vec<RankStatistics>,
}
