//! Messages between the command that starts a group (the front) and its ranks, as JSON over the control channel.

use kernels::KvType;
use serde::{Deserialize, Serialize};

use crate::backend::CacheUse;
use crate::ranks::layout::Layout;
use crate::request::{Drafts, FinishReason, RankStatistics, Request, TokenInfo};

/// What a rank is told when it joins: which model to run and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The model as the user named it. A rank on another machine looks it up in its own store.
    pub model: String,
    /// Where the front has the model; ranks on the same machine use it as it is.
    pub path: String,
    /// Size of the model's files together, by which a rank checks that it has the same model.
    pub model_bytes: u64,
    /// The layout of the group.
    pub layout: Layout,
    /// Threads per rank.
    pub threads: usize,
    /// Sequences that run at once.
    pub slots: usize,
    /// Positions that each of them may have.
    pub context: usize,
    /// Blocks of 32 positions that the KV cache has for all of them together.
    pub kv_blocks: usize,
    /// Most tokens of prompts in one step. Each sequence that answers adds one.
    pub step_tokens: usize,
    /// Longest time between two tokens of a stream while prompts are evaluated, where that is to be kept, in milliseconds.
    pub token_latency_ms: Option<u32>,
    /// Most tokens that are drafted for a sequence in one step; 0 for none.
    pub draft_max: usize,
    /// A small model whose drafts are checked where none are found in the text.
    pub draft_model: Option<DraftFile>,
    /// What a drafted token is taken to cost, in tokens that are generated in the same time; where there is nothing, that is
    /// found out by the time that steps take.
    pub draft_price: Option<f64>,
    /// Whether the ranks of the front's machine have more threads than it has cores, so that waiting ones must give
    /// theirs up.
    pub crowded: bool,
    /// Tokens that end a generation.
    pub end_tokens: Vec<u32>,
    /// How the KV cache stores its values.
    pub kv_type: KvType,
    /// Where the weights are kept.
    pub weights: Weights,
    /// Where the KV cache is kept between runs, if anywhere.
    pub prompt_cache: Option<PromptCache>,
}

/// Where ranks keep their KV cache between runs of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptCache {
    /// A folder on each rank's machine.
    pub folder: String,
    /// A number that no other run of the group has.
    pub run: u64,
}

/// Where rank 0 finds the draft model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftFile {
    /// As the user named it.
    pub model: String,
    /// Where the front has it.
    pub path: String,
    /// Size of its files together.
    pub model_bytes: u64,
}

/// Where ranks keep their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// In memory if there is room for those of all ranks of the machine, else in the file.
    #[default]
    Auto,
    /// In memory of their own, in the order in which they are used.
    Memory,
    /// In the file's map, whose pages the system can drop and read again. Slower, and for models larger than memory.
    File,
}

/// From the front to a rank.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToRank {
    /// All ranks are ready: go into the loop, with what the KV cache held before if all ranks have restored it.
    Start { restored: bool },
    /// To rank 0: run this request.
    Generate { id: u64, request: Box<Request> },
    /// To rank 0: nobody wants the rest of this request.
    Cancel { id: u64 },
    /// To rank 0: end the group.
    Stop,
}

/// From a rank to the front.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromRank {
    /// So many bytes of the shard's weights are loaded, of so many. Said now and then, until it is ready.
    Loading { done: u64, total: u64 },
    /// The shard is loaded, and the KV cache as the run `restored` has left it.
    Ready { load_ms: f64, weight_bytes: u64, restored: Option<u64> },
    /// A part of a prompt was evaluated. Tells the front that rank 0 is alive.
    Progress {},
    /// The prompt was evaluated.
    Prompt { id: u64, tokens: Vec<TokenInfo>, cached: usize },
    /// The embedding of a request's prompt.
    Embedding { id: u64, values: Vec<f32> },
    /// Tokens were drawn, one for each of some requests.
    Tokens { tokens: Vec<(u64, TokenInfo)> },
    /// How much of the KV cache is in use. Said when a request has begun or ended.
    Cache { cache: CacheUse },
    /// The request has ended.
    Done { id: u64, finish: FinishReason, prefill_ms: f64, decode_ms: f64, drafts: Drafts, ranks: Vec<RankStatistics> },
    /// This rank cannot go on. `lost` is the rank that it could not reach, if that is why.
    Failed { message: String, lost: Option<usize> },
}
