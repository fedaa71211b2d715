//! `ropewalk bench`: prefill and decode speed.

mod answers;
mod collectives;
mod kernels;
mod model;
mod roofline;
mod spread;

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::launched::Launchable;
use crate::options::{LayoutOptions, ModelOptions};

/// Measure prefill and decode speed
///
/// Loads the model once. Each row is one combination of lengths: a prompt of random tokens is evaluated behind the tokens
/// of the depth, and tokens are generated behind the same depth. `bench kernels` measures single kernels, and `bench
/// collectives` the links between ranks.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  ropewalk bench smollm2
  ropewalk bench smollm2 -p 128,512 -n 64 --threads 2 --repetitions 5
  ropewalk bench smollm2 -d 0,4096 --ranks 2 --json
  ropewalk bench smollm2 -p 0 -d 0 --parallel 8
  ropewalk bench smollm2 --roofline
  ropewalk bench kernels --only multiply
  ropewalk bench collectives --ranks 2 --transport tcp"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    model: Option<ModelOptions>,
    /// Tokens of the prompt; several values give several rows, 0 leaves prefill out
    #[arg(
        long = "n-prompt",
        alias = "prompt",
        short = 'p',
        value_name = "TOKENS",
        value_delimiter = ',',
        default_value = "512"
    )]
    prompt: Vec<usize>,
    /// Tokens to generate; several values give several rows, 0 leaves decode out
    #[arg(
        long = "n-gen",
        alias = "gen",
        short = 'n',
        value_name = "TOKENS",
        value_delimiter = ',',
        default_value = "128"
    )]
    r#gen: Vec<usize>,
    /// Tokens before the prompt and before those generated; several values give several rows
    #[arg(
        long = "n-depth",
        alias = "depth",
        short = 'd',
        value_name = "TOKENS",
        value_delimiter = ',',
        default_value = "0,512"
    )]
    depth: Vec<usize>,
    /// Measurements per row, after one that does not count
    #[arg(long, short = 'r', value_name = "R", default_value_t = 3)]
    repetitions: usize,
    /// Sequences at once, whose tokens all count
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Also show the figures as shares of this machine's limits, which are measured in the same run
    #[arg(long)]
    roofline: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layout: LayoutOptions,
}

/// What else can be measured.
#[derive(Subcommand)]
enum Other {
    Collectives(collectives::Arguments),
    Kernels(kernels::Arguments),
}

impl Arguments {
    pub(crate) fn launchable(&mut self) -> Launchable<'_> {
        match &mut self.other {
            Some(Other::Collectives(arguments)) => arguments.group.launchable(),
            Some(Other::Kernels(_)) | None => self.layout.launchable(),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.other {
        Some(Other::Collectives(arguments)) => return collectives::run(arguments),
        Some(Other::Kernels(arguments)) => return kernels::run(arguments),
        None => {}
    }
    let Some(model) = &arguments.model else {
        bail!("name a MODEL to measure, such as smollm2, or measure links with `ropewalk bench collectives`");
    };
    model::run(arguments, model)
}
