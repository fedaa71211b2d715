//! What a caller asks of the engine and what it hears back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::guide::Constraint;

/// How the next token is drawn from the logits. The defaults are greedy: temperature 0 and nothing else.
///
/// The filters run in this order: the tokens that a constraint allows, logit bias, repetition, presence and frequency penalties, top-k, temperature, top-p,
/// min-p, then the draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 picks the most likely token; larger values flatten the distribution.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divide (or, where negative, multiply) logits of tokens already seen, prompt included; 1 is off (CTRL, 2019).
    pub repetition_penalty: f32,
    /// How many of the latest tokens the repetition penalty looks at; 0 looks at all.
    pub repetition_window: usize,
    /// Subtracted once from the logit of every token already generated (OpenAI's `presence_penalty`).
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per time it was generated (OpenAI's `frequency_penalty`).
    pub frequency_penalty: f32,
    /// Added to the logits of these token ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; the same seed gives the same text. `None` takes one from the operating system.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// One generation: a prompt in token ids and what to do with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Token ids of the prompt, special tokens included. Must not be empty.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Most tokens to generate; `None` goes on to the end of the context. 0 only evaluates the prompt.
    pub max_tokens: Option<usize>,
    /// Text at which generation ends; neither the text nor a part of it is delivered.
    pub stop: Vec<String>,
    /// `Some(n)`: report the log-probability of each generated token and of the `n` likeliest alternatives.
    pub logprobs: Option<usize>,
    /// The same for every prompt token but the first (which has no predecessor).
    pub prompt_logprobs: Option<usize>,
    /// Go on past end-of-text tokens (benchmarks want a fixed length).
    pub ignore_end: bool,
    /// What the answer must look like. Log-probabilities stay those of the model, which knows nothing of it.
    pub constraint: Option<Constraint>,
    /// Instead of an answer, the embedding of the prompt.
    pub embed: Option<Pooling>,
    /// Tokens that the answer is likely to contain (OpenAI's `prediction`), from which drafts are made; of the prompt they
    /// are made anyway.
    pub prediction: Vec<u32>,
    /// How urgent it is: smaller numbers go first (vLLM's `priority`). Those that wait become more urgent with time.
    pub priority: i32,
    /// On whose behalf it comes. Clients take turns.
    pub client: String,
}

/// How the hidden states of a text's tokens become one embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the last token.
    Last,
    /// That of the last token at its own length, as a reranker's head takes it.
    Ranking,
}

/// A candidate for one position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TopToken {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of its probability, before penalties and temperature.
    pub logprob: f32,
}

/// One token of the prompt or of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// Token id.
    pub id: u32,
    /// Log-probability, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest alternatives, likeliest first, where asked for.
    pub top: Vec<TopToken>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-text token or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The caller went away or asked to stop.
    Cancelled,
    /// The constraint became too complex to be followed. What was said so far is by it.
    ConstraintFailed,
}

/// Where the time of a generation went, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Waiting for earlier requests.
    pub queue_ms: f64,
    /// Evaluating the prompt, up to and with the first token.
    pub prefill_ms: f64,
    /// From the first token to the last.
    pub decode_ms: f64,
    /// From submission to the first token.
    pub ttft_ms: f64,
}

/// The end of a generation that went well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Why it ended.
    pub finish: FinishReason,
    /// The stop string that ended it, if one did.
    pub stop_text: Option<String>,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Of those, how many were still in the KV cache and not evaluated again.
    pub cached_tokens: usize,
    /// Tokens generated (an end-of-text token is counted).
    pub completion_tokens: usize,
    /// Where the time went.
    pub timings: Timings,
    /// What came of drafts, if any were made.
    pub drafts: Drafts,
    /// How each rank spent the time since it last told, or since the group was last idle, by rank: where several requests
    /// run at once, it is the share of all of them that had not been told of, so that the sum over answers is right.
    pub ranks: Vec<RankStatistics>,
}

/// How many tokens were guessed in advance, and how many of them were right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafts {
    /// Tokens drafted.
    pub drafted: usize,
    /// Of those, tokens that became part of the answer.
    pub accepted: usize,
}

/// How one rank spent some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStatistics {
    /// Milliseconds spent computing.
    pub compute_ms: f64,
    /// Milliseconds spent waiting for other ranks.
    pub wait_ms: f64,
    /// Largest resident memory of the process so far, in bytes; 0 where the system does not tell.
    pub peak_rss_bytes: u64,
}

/// What a caller hears while its request runs. The last event is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt was evaluated; one entry per prompt token where `prompt_logprobs` was asked for, else empty.
    Prompt(Vec<TokenInfo>),
    /// The embedding of the prompt, where asked for: as many values as the model's hidden state has, of length 1.
    Embedding(Vec<f32>),
    /// New text, whole UTF-8 characters, never part of a stop string, and the tokens it came from. Either may be
    /// empty: a token may not complete a character, and held-back text may be released without a new token.
    Text {
        /// The new text.
        text: String,
        /// The tokens behind it.
        tokens: Vec<TokenInfo>,
    },
    /// The generation ended.
    Done(Completion),
    /// The generation failed.
    Failed(EngineError),
}

/// A request that was not accepted. Nothing was computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// No tokens to start from.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt fills the context.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {context}: shorten the prompt or raise the context size"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary} tokens")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A sampling value that has no meaning.
    #[error("{name} is {value}, but must be {expected}")]
    BadSampling {
        /// Name of the field.
        name: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Too many requests are waiting.
    #[error("{waiting} requests are waiting already: try again in {} s", .retry_after.as_secs())]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// When there is likely to be room, in whole seconds.
        retry_after: Duration,
    },
    /// The engine has stopped.
    #[error("the engine is not running: {0}")]
    NotRunning(String),
}

/// A generation that was accepted and then failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A rank died, stalled or was cut off.
    #[error("rank {rank} was lost: {cause}")]
    RankLost {
        /// Its number.
        rank: usize,
        /// What is known.
        cause: String,
    },
    /// A rank reported an error of its own.
    #[error("rank {rank} failed: {message}")]
    RankFailed {
        /// Its number.
        rank: usize,
        /// Its words.
        message: String,
    },
    /// The engine was shut down while the request ran.
    #[error("the engine was shut down")]
    ShutDown,
}
