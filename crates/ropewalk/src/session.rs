//! A model under way: ranks started, shards loaded, the engine ready for requests.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use engine::ranks::{DraftFile, Front, Job, Layout, Loading, model_bytes};
use engine::{Engine, Limits, ModelDetails, ModelInfo};
use kernels::KvCache;
use model::{Blueprint, ChatTemplate, Gguf, Ranking, Tokenizer};
use store::LocalModel;

use crate::group::{Gathering, local_ranks};
use crate::interrupt;
use crate::job::RankJob;
use crate::models;
use crate::options::{DRAFT_MAX, LayoutOptions, ModelOptions};
use crate::progress::LoadingProgress;
use crate::ranks::Children;

/// How long shards may take to load.
const LOAD: Duration = Duration::from_secs(1800);
/// Contexts longer than this have to be asked for: their KV cache takes much memory once it fills.
const DEFAULT_CONTEXT_MAX: usize = 32_768;

/// How requests share a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing {
    /// Requests that run at once.
    pub(crate) parallel: usize,
    /// Requests that wait behind them.
    pub(crate) waiting: usize,
    /// Longest time between two tokens of one of them while prompts of others are evaluated, in milliseconds, where that is
    /// to be kept.
    pub(crate) token_latency_ms: Option<u32>,
}

impl Sharing {
    /// So many requests at once, of which none waits for another.
    pub(crate) fn of(parallel: usize) -> Self {
        Self { parallel, waiting: Limits::default().waiting, token_latency_ms: None }
    }
}

/// A running model. Dropping it stops the ranks.
pub(crate) struct Session {
    pub(crate) engine: Engine,
    pub(crate) layout: Layout,
    /// Threads per rank.
    pub(crate) threads: usize,
    /// Milliseconds from the start of the ranks until all were ready.
    pub(crate) load_ms: f64,
    /// Bytes of weights that all ranks together read per token.
    pub(crate) weight_bytes: u64,
    /// Dropped after the engine, which tells the ranks to stop.
    _children: Children,
}

impl Session {
    /// Starts the model on the ranks that the options name, for one request at a time.
    pub(crate) fn start(model: &ModelOptions, options: &LayoutOptions) -> anyhow::Result<Self> {
        Self::start_parallel(model, options, 1)
    }

    /// The same for up to `parallel` requests at once.
    pub(crate) fn start_parallel(
        model: &ModelOptions,
        options: &LayoutOptions,
        parallel: usize,
    ) -> anyhow::Result<Self> {
        interrupt::install()?;
        let (local, file) = models::open(model)?;
        let draft_model = models::draft(options, model.offline)?;
        Self::start_with(&model.model, options, Sharing::of(parallel), (&local, &file, draft_model), &|_| {})
    }

    /// The same with a model whose files are at hand, which ranks elsewhere know as `named`, with the draft model for it, and
    /// with whoever wants to hear how much of it is loaded.
    pub(crate) fn start_with(
        named: &str,
        options: &LayoutOptions,
        Sharing { parallel, waiting, token_latency_ms }: Sharing,
        (local, file, draft_model): (&LocalModel, &Gguf, Option<DraftFile>),
        report: &dyn Fn(Loading),
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let blueprint = Blueprint::from_gguf(file)?;
        let layout = choose_layout(options, &blueprint)?;
        let local_ranks = local_ranks(layout.ranks(), &options.remote)?;
        let threads = threads_per_rank(options, local_ranks)?;
        let context = context_size(options, &blueprint)?;
        let gathering = Gathering::start(layout.ranks(), &options.remote, &options.links)?;
        // Reading the vocabulary takes time of its own, during which the ranks load.
        let tokenizer = Tokenizer::from_gguf(file)?;
        let job = Job {
            model: named.to_owned(),
            path: local.path.display().to_string(),
            model_bytes: model_bytes(file),
            layout: layout.clone(),
            threads,
            slots: parallel,
            context,
            kv_blocks: kv_blocks(options, context, parallel)?,
            step_tokens: options.ubatch_size.min(context),
            token_latency_ms,
            draft_max: options.draft_max.unwrap_or(DRAFT_MAX).into(),
            draft_model,
            draft_price: None,
            crowded: local_ranks * threads > cores()?,
            end_tokens: end_tokens(&tokenizer),
            kv_type: options.cache_type.kv_type(),
            weights: options.weights(),
            prompt_cache: options.prompt_cache(&local.name)?,
        };
        let (controls, children) = gathering.finish(&serde_json::to_vec(&RankJob::Model(Box::new(job)))?)?;
        let progress = LoadingProgress::new(&local.name);
        let (front, ready) = Front::start(controls, LOAD, &mut |loading| {
            progress.show(loading);
            report(loading);
        })?;
        drop(progress);
        let front = if options.prompt_cache.is_some() { front.keeping_cache() } else { front };
        let chat_template = ChatTemplate::from_gguf(file, &tokenizer)?.map(Arc::new);
        let ranking = Ranking::from_gguf(file, &tokenizer)?.map(Arc::new);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let (id, tokenizer) = (local.name.clone(), Arc::new(tokenizer));
        let details = ModelDetails::from_gguf(file);
        let model = ModelInfo { id, created, tokenizer, chat_template, ranking, context, details };
        let engine = Engine::start(model, Limits { running: parallel, waiting }, Box::new(front));
        let load_ms = started.elapsed().as_secs_f64() * 1000.0;
        let weight_bytes = ready.iter().map(|rank| rank.weight_bytes).sum();
        Ok(Self { engine, layout, threads, load_ms, weight_bytes, _children: children })
    }
}

impl server::Loaded for Session {
    fn engine(&self) -> &Engine {
        &self.engine
    }
}

fn choose_layout(options: &LayoutOptions, blueprint: &Blueprint) -> anyhow::Result<Layout> {
    let layers = blueprint.layers.len();
    let heads = blueprint.layers.iter().map(|layer| layer.attention.heads).min().unwrap_or(1);
    let LayoutOptions { ranks, tp, pp, tensor_split, .. } = options;
    Ok(Layout::choose(*ranks, *tp, *pp, tensor_split.as_deref(), (layers, heads))?)
}

fn threads_per_rank(options: &LayoutOptions, local_ranks: usize) -> anyhow::Result<usize> {
    if let Some(threads) = options.threads {
        return Ok(threads.into());
    }
    Ok((cores()? / local_ranks.max(1)).max(1))
}

fn cores() -> anyhow::Result<usize> {
    let cores = std::thread::available_parallelism();
    Ok(cores.context("cannot tell how many cores this machine has")?.get())
}

/// Blocks of the KV cache: as many as all requests at once can need, unless it is said how many tokens they have together.
fn kv_blocks(options: &LayoutOptions, context: usize, parallel: usize) -> anyhow::Result<usize> {
    let each = context.div_ceil(KvCache::BLOCK);
    match options.max_total_tokens {
        None => Ok(each * parallel),
        Some(tokens) if tokens < context => {
            bail!(
                "--max-total-tokens {tokens} is less than the {context} tokens of a context: raise it or lower --ctx-size"
            )
        }
        Some(tokens) => Ok(tokens.div_ceil(KvCache::BLOCK)),
    }
}

pub(crate) fn context_size(options: &LayoutOptions, blueprint: &Blueprint) -> anyhow::Result<usize> {
    match options.ctx_size {
        Some(0 | 1) => bail!("--ctx-size must be at least 2: a token of prompt and one of answer"),
        Some(context) if context > blueprint.context => {
            bail!("--ctx-size {context} is more than the {} tokens that this model was trained for", blueprint.context)
        }
        Some(context) => Ok(context),
        None => Ok(blueprint.context.min(DEFAULT_CONTEXT_MAX)),
    }
}

/// The ids of the tokens that end a generation.
fn end_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    (0..tokenizer.vocabulary() as u32).filter(|&id| tokenizer.is_end_of_generation(id)).collect()
}
