//! Options that several commands share.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::{Args, ValueEnum};
use engine::Sampling;
use engine::ranks::{PromptCache, Weights};
use fabric::launch::Launch;
use fabric::{JoinOptions, Network, Transport};
use kernels::KvType;

use crate::launched::Launchable;

/// What every command that names a model says about it.
pub(crate) const MODEL_HELP: &str = "\
A path to a GGUF file or to a folder with safetensors, hf:OWNER/NAME[:FILE], pip:PACKAGE, or a short name such as smollm2";

/// Which model, and whether it may be downloaded.
#[derive(Args)]
pub(crate) struct ModelOptions {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    pub(crate) model: String,
    /// Never download; fail if the model is not on this machine
    #[arg(long)]
    pub(crate) offline: bool,
}

/// How the model is laid out over ranks.
#[derive(Args, Clone)]
#[command(next_help_heading = "Layout")]
pub(crate) struct LayoutOptions {
    /// Processes that share the work [default: --tp times --pp]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,
    /// Tensor parallel: ranks that share each layer [default: all]
    #[arg(long, alias = "tensor-parallel-size", value_name = "T")]
    pub(crate) tp: Option<usize>,
    /// Pipeline parallel: stages that hold the layers one after the other
    #[arg(long, alias = "pipeline-parallel-size", value_name = "P")]
    pub(crate) pp: Option<usize>,
    /// Shares of the ranks of a stage, for example 3,1
    #[arg(long, value_name = "SHARES", value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) tensor_split: Option<Vec<f64>>,
    #[command(flatten)]
    pub(crate) links: LinkOptions,
    /// Threads per rank [default: the cores of this machine, shared out over its ranks]
    #[arg(long, short = 't', value_name = "K", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Tokens that prompt and answer may take together [default: as trained, at most 32768]
    #[arg(long, short = 'c', value_name = "TOKENS")]
    pub(crate) ctx_size: Option<usize>,
    /// Tokens that all requests under way may have together in the KV cache; where that is not enough, the youngest makes room
    /// and goes on later [default: --ctx-size for each request at once]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_total_tokens: Option<usize>,
    /// Most tokens evaluated in one step
    #[arg(long, value_name = "TOKENS", default_value_t = STEP_TOKENS, value_parser = parse_step_tokens)]
    pub(crate) ubatch_size: usize,
    /// Most tokens that are drafted from what was said before and checked in one step, where that pays; 0 drafts none; the
    /// answer is the same [default: 15, for benchmarks 0]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(crate) draft_max: Option<u8>,
    /// A small model of the same family, with the same tokens, that drafts where nothing is found in what was said before, as
    /// long as that pays; the answer is the same. Rank 0 has all of it. Of several models it drafts for the first one only
    /// [default: none]
    #[arg(long, alias = "model-draft", value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Type of the KV cache's elements
    #[arg(long, value_enum, default_value_t)]
    pub(crate) cache_type: CacheType,
    /// Folder where ranks keep their KV cache when they end, so that after a new start conversations go on without being
    /// evaluated again. It fits the same model and layout only [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) prompt_cache: Option<PathBuf>,
    /// Leave the weights in the file's map: slower, for models larger than memory [default: if there is no room]
    #[arg(long)]
    pub(crate) mmap: bool,
    /// Keep the weights in memory of their own even if little is free [default: if there is room]
    #[arg(long, conflicts_with = "mmap")]
    pub(crate) no_mmap: bool,
    #[command(flatten)]
    pub(crate) remote: RemoteOptions,
}

/// The ranks of a group about which nothing was said.
const DEFAULT_RANKS: usize = 2;
/// Most tokens in one step unless said otherwise.
const STEP_TOKENS: usize = 256;
/// Most tokens of a draft unless said otherwise: with the token before them as many as logits are computed of at a time.
pub(crate) const DRAFT_MAX: u8 = 15;
/// Where ranks of the same machine meet: any free port that only this machine reaches.
const LOOPBACK: &str = "127.0.0.1:0";

impl LayoutOptions {
    pub(crate) fn launchable(&mut self) -> Launchable<'_> {
        Launchable { ranks: &mut self.ranks, remote: &mut self.remote, links: &self.links }
    }

    /// Where the ranks of a model keep their KV cache.
    pub(crate) fn prompt_cache(&self, model: &str) -> anyhow::Result<Option<PromptCache>> {
        let Some(folder) = &self.prompt_cache else { return Ok(None) };
        // Names may be paths.
        let name = model.replace(std::path::is_separator, "_");
        let folder = std::path::absolute(folder).context("cannot find the folder of --prompt-cache")?.join(name);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
        let run = since ^ (u64::from(std::process::id()) << 40);
        Ok(Some(PromptCache { folder: folder.display().to_string(), run }))
    }

    pub(crate) fn weights(&self) -> Weights {
        match (self.mmap, self.no_mmap) {
            (true, _) => Weights::File,
            (false, true) => Weights::Memory,
            (false, false) => Weights::Auto,
        }
    }

    /// This many ranks on this machine, everything else as by default.
    pub(crate) fn local(ranks: usize) -> Self {
        Self {
            ranks: Some(ranks),
            tp: None,
            pp: None,
            tensor_split: None,
            links: LinkOptions::default(),
            threads: None,
            ctx_size: None,
            max_total_tokens: None,
            ubatch_size: STEP_TOKENS,
            draft_max: None,
            draft_model: None,
            cache_type: CacheType::F16,
            prompt_cache: None,
            mmap: false,
            no_mmap: false,
            remote: RemoteOptions { remote_ranks: 0, rendezvous: LOOPBACK.to_owned(), secret_file: None, launch: None },
        }
    }
}

/// How the ranks are joined. Every rank of a group may have its own.
#[derive(Args, Clone, Default)]
pub(crate) struct LinkOptions {
    /// What links are made of
    #[arg(long, value_enum, default_value_t)]
    pub(crate) transport: TransportOption,
    /// Addresses or networks of the cables that links may use, such as 10.0.0.0/24 [default: all that there are]
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    pub(crate) networks: Vec<Network>,
    /// TCP connections of a link over each cable [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) connections: Option<u8>,
    /// Encrypt what leaves the machine, and refuse ranks on other machines that do not
    #[arg(long)]
    pub(crate) encrypt: bool,
}

impl LinkOptions {
    /// The same as arguments of `ropewalk rank`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--transport".to_owned(), self.transport.word().to_owned()];
        if !self.networks.is_empty() {
            let networks: Vec<_> = self.networks.iter().map(Network::to_string).collect();
            arguments.extend(["--networks".to_owned(), networks.join(",")]);
        }
        if let Some(connections) = self.connections {
            arguments.extend(["--connections".to_owned(), connections.to_string()]);
        }
        if self.encrypt {
            arguments.push("--encrypt".to_owned());
        }
        arguments
    }

    /// The same for a rank that joins.
    pub(crate) fn join_options(&self) -> JoinOptions {
        JoinOptions {
            transport: self.transport.transport(),
            listen: self.networks.clone(),
            connections_per_cable: self.connections.unwrap_or(1).into(),
            encrypt: self.encrypt,
            ..JoinOptions::default()
        }
    }
}

/// Ranks that are started by hand on other machines.
#[derive(Args, Clone)]
pub(crate) struct RemoteOptions {
    /// How many of the ranks are started by hand, with `ropewalk rank`
    #[arg(long, value_name = "N", default_value_t = 0, requires = "secret_file")]
    pub(crate) remote_ranks: usize,
    /// Where ranks find this command: an address of this machine that the others reach; or `env`, when mpirun, srun,
    /// torchrun or mlx.launch has started this command once for each rank
    #[arg(long, value_name = "HOST:PORT", default_value = LOOPBACK)]
    pub(crate) rendezvous: String,
    /// File with the secret that all ranks share; made if it does not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// What has started this command once for each rank.
    #[arg(skip)]
    pub(crate) launch: Option<Launch>,
}

/// The ranks of a command that runs no model.
#[derive(Args)]
pub(crate) struct GroupOptions {
    /// Ranks of the group [default: 2, or those that a launcher has started]
    #[arg(long, value_name = "N", value_parser = parse_group_size)]
    ranks: Option<usize>,
    #[command(flatten)]
    pub(crate) links: LinkOptions,
    #[command(flatten)]
    pub(crate) remote: RemoteOptions,
}

impl GroupOptions {
    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.ranks.unwrap_or(DEFAULT_RANKS)
    }

    pub(crate) fn launchable(&mut self) -> Launchable<'_> {
        Launchable { ranks: &mut self.ranks, remote: &mut self.remote, links: &self.links }
    }
}

/// A number of ranks that have links.
fn parse_group_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranks @ 2..=fabric::MAX_RANKS) => Ok(ranks),
        Ok(..2) => Err("must be at least 2: one rank has no links".to_owned()),
        _ => Err(format!("must be between 2 and {}", fabric::MAX_RANKS)),
    }
}

fn parse_step_tokens(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(tokens @ 1..=4096) => Ok(tokens),
        _ => Err("must be between 1 and 4096".to_owned()),
    }
}

/// What links between ranks are made of.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum TransportOption {
    /// Shared memory within a machine; RDMA between machines where both have it, else TCP
    #[default]
    Auto,
    /// Shared memory
    Shm,
    /// TCP
    Tcp,
    /// RDMA over Thunderbolt, RoCE or InfiniBand
    Rdma,
}

impl TransportOption {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Auto => Transport::Auto,
            Self::Shm => Transport::SharedMemory,
            Self::Tcp => Transport::Tcp,
            Self::Rdma => Transport::Rdma,
        }
    }

    /// The word that gives this option on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// Type of the KV cache's elements.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum CacheType {
    /// 16-bit floats
    #[default]
    F16,
    /// 32-bit floats
    F32,
    /// 8-bit integers in blocks of 32 with a scale: half the memory of f16
    #[value(name = "q8_0")]
    Q8_0,
}

impl CacheType {
    pub(crate) fn kv_type(self) -> KvType {
        match self {
            Self::F16 => KvType::F16,
            Self::F32 => KvType::F32,
            Self::Q8_0 => KvType::Q8_0,
        }
    }
}

/// How tokens are drawn.
#[derive(Args, Clone)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingOptions {
    /// 0 takes the likeliest token, larger values vary more
    #[arg(long, alias = "temperature", value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Consider only the K likeliest tokens; 0 considers all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub(crate) top_k: usize,
    /// Consider only the likeliest tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Make tokens that stand in the text less likely; 1 is off
    #[arg(long, alias = "repetition-penalty", value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// How many of the latest tokens the repetition penalty looks at; 0 looks at all
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) repeat_last_n: usize,
    /// Make tokens that were generated less likely, once
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Make tokens that were generated less likely, for each time
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Add to a token's logit, for example 42-1.5 or 42+1; may be repeated
    #[arg(long, value_name = "ID(+/-)BIAS", value_parser = parse_logit_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Text at which to stop; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingOptions {
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            repetition_window: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

fn parse_logit_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = || format!("`{text}` is not a token id followed by a signed bias, such as 42-1.5");
    let sign = text.find(['+', '-']).ok_or_else(expected)?;
    let (id, bias) = text.split_at(sign);
    Ok((id.parse().map_err(|_| expected())?, bias.parse().map_err(|_| expected())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_child_ranks_are_as_told() {
        use clap::Parser;
        #[derive(Parser)]
        struct Child {
            #[command(flatten)]
            links: LinkOptions,
        }
        let told =
            ["rank", "--transport", "tcp", "--networks", "10.0.0.0/24,fe80::1", "--connections", "3", "--encrypt"];
        let parent = Child::parse_from(told).links;
        let child = Child::parse_from(std::iter::once("rank".to_owned()).chain(parent.arguments())).links;
        assert_eq!(child.networks, parent.networks);
        assert_eq!((child.transport.word(), child.connections), ("tcp", Some(3)));
        let options = child.join_options();
        assert!(options.encrypt && options.connections_per_cable == 3);
    }

    #[test]
    fn logit_bias_is_an_id_and_a_signed_number() {
        assert_eq!(parse_logit_bias("42-1.5"), Ok((42, -1.5)));
        assert_eq!(parse_logit_bias("7+3"), Ok((7, 3.0)));
        for wrong in ["", "42", "x+1", "42+", "-1"] {
            assert!(parse_logit_bias(wrong).is_err(), "{wrong}");
        }
    }
}
