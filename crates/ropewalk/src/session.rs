//! A model under way: ranks started, shards loaded, the engine ready for requests.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use engine::ranks::{Front, Job, Layout, model_bytes};
use engine::{Engine, Limits, ModelInfo};
use fabric::{Rendezvous, RendezvousOptions, Secret};
use model::{Blueprint, ChatTemplate, Gguf, Tokenizer};
use store::LocalModel;

use crate::interrupt;
use crate::models;
use crate::options::{CacheType, LayoutOptions, ModelOptions};
use crate::ranks::Children;

/// How long the ranks of this machine may take to find each other.
const GATHER_LOCAL: Duration = Duration::from_secs(30);
/// How long a person may take to start ranks on other machines.
const GATHER_REMOTE: Duration = Duration::from_secs(600);
/// How long shards may take to load.
const LOAD: Duration = Duration::from_secs(1800);
/// Contexts longer than this have to be asked for: their KV cache takes much memory once it fills.
const DEFAULT_CONTEXT_MAX: usize = 32_768;

/// A running model. Dropping it stops the ranks.
pub(crate) struct Session {
    pub(crate) engine: Engine,
    pub(crate) layout: Layout,
    /// Threads per rank.
    pub(crate) threads: usize,
    /// Milliseconds from the start of the ranks until all were ready.
    pub(crate) load_ms: f64,
    /// Dropped after the engine, which tells the ranks to stop.
    _children: Children,
}

impl Session {
    /// Starts the model on the ranks that the options name.
    pub(crate) fn start(model: &ModelOptions, options: &LayoutOptions) -> anyhow::Result<Self> {
        interrupt::install()?;
        let (local, file) = models::open(model)?;
        Self::start_with(model, options, &local, &file)
    }

    fn start_with(
        model: &ModelOptions,
        options: &LayoutOptions,
        local: &LocalModel,
        file: &Gguf,
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let blueprint = Blueprint::from_gguf(file)?;
        let layout = choose_layout(options, &blueprint)?;
        let local_ranks = (layout.ranks().checked_sub(options.remote.remote_ranks))
            .with_context(|| format!("--remote-ranks asks for more than the {} ranks there are", layout.ranks()))?;
        let threads = threads_per_rank(options, local_ranks)?;
        let context = context_size(options, &blueprint)?;
        let secret = secret(options)?;
        let rendezvous_options = RendezvousOptions {
            deadline: if options.remote.remote_ranks > 0 { GATHER_REMOTE } else { GATHER_LOCAL },
            ..RendezvousOptions::default()
        };
        let address = options.remote.rendezvous.as_str();
        let mut rendezvous = Rendezvous::listen(address, &secret, layout.ranks(), rendezvous_options)
            .with_context(|| format!("cannot wait for ranks at {address}"))?;
        let mut children = Children::spawn(local_ranks, rendezvous.address(), &secret, options.transport)?;
        if options.remote.remote_ranks > 0 {
            announce(options, &rendezvous);
        }
        // Reading the vocabulary takes time of its own, during which the ranks load.
        let tokenizer = Tokenizer::from_gguf(file)?;
        let job = Job {
            model: model.model.clone(),
            path: local.path.display().to_string(),
            model_bytes: model_bytes(file),
            layout: layout.clone(),
            threads,
            context,
            step_tokens: options.ubatch_size.min(context),
            crowded: local_ranks * threads > cores()?,
            end_tokens: end_tokens(&tokenizer),
            kv_f32: options.cache_type == CacheType::F32,
        };
        let job = serde_json::to_vec(&job)?;
        let stopper = rendezvous.stopper();
        let gather = || rendezvous.gather(|_, _| job.clone());
        let (gathered, ended) = children.watch_during(|| stopper.stop(), gather);
        let controls = match (gathered, ended) {
            (Ok(controls), _) => controls,
            (Err(_), Some(ended)) => bail!("{ended}; its own message stands above"),
            (Err(error), None) => return Err(anyhow!(error).context("the ranks did not come together")),
        };
        let (front, _) = Front::start(controls, LOAD)?;
        let chat_template = ChatTemplate::from_gguf(file, &tokenizer)?.map(Arc::new);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let model =
            ModelInfo { id: local.name.clone(), created, tokenizer: Arc::new(tokenizer), chat_template, context };
        let engine = Engine::start(model, Limits::default(), Box::new(front));
        let load_ms = started.elapsed().as_secs_f64() * 1000.0;
        Ok(Self { engine, layout, threads, load_ms, _children: children })
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

fn context_size(options: &LayoutOptions, blueprint: &Blueprint) -> anyhow::Result<usize> {
    match options.ctx_size {
        Some(0 | 1) => bail!("--ctx-size must be at least 2: a token of prompt and one of answer"),
        Some(context) if context > blueprint.context => {
            bail!("--ctx-size {context} is more than the {} tokens that this model was trained for", blueprint.context)
        }
        Some(context) => Ok(context),
        None => Ok(blueprint.context.min(DEFAULT_CONTEXT_MAX)),
    }
}

/// The secret of the group: a fresh one, unless ranks on other machines need to know it.
fn secret(options: &LayoutOptions) -> anyhow::Result<Secret> {
    let Some(path) = &options.remote.secret_file else { return Ok(Secret::random()?) };
    if path.exists() {
        return Ok(Secret::from_file(path)?);
    }
    let secret = Secret::random()?;
    secret.write_to_file(path)?;
    eprintln!("made a secret in {}: copy it to the other machines", path.display());
    Ok(secret)
}

fn announce(options: &LayoutOptions, rendezvous: &Rendezvous) {
    let file = options.remote.secret_file.as_deref().unwrap_or(std::path::Path::new("FILE")).display();
    let address = rendezvous.address();
    let count = options.remote.remote_ranks;
    eprintln!("waiting for {count} ranks; on each of the other machines run");
    eprintln!("  ropewalk rank --rendezvous {address} --secret-file {file}");
}

/// The ids of the tokens that end a generation.
fn end_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    (0..tokenizer.vocabulary() as u32).filter(|&id| tokenizer.is_end_of_generation(id)).collect()
}
