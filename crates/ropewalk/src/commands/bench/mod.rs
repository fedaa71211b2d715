//! `ropewalk bench`: prefill and decode speed.

mod collectives;
mod kernels;

use anyhow::bail;
use clap::{Args, Subcommand};
use engine::{Completion, FinishReason, Request};
use serde::Serialize;

use crate::commands::{decode_rate, generate, prefill_rate, print_json};
use crate::interrupt::Interrupted;
use crate::launched::Launchable;
use crate::options::{LayoutOptions, ModelOptions};
use crate::session::Session;
use crate::table;

/// Measure prefill and decode speed
///
/// Each row is one pair of lengths. A prompt of random tokens is evaluated, then tokens are generated after it, so
/// decode is measured at the depth of the prompt; --depth measures it at other depths instead. `bench collectives`
/// measures the links between ranks.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  ropewalk bench smollm2
  ropewalk bench smollm2 --prompt 128,512 --gen 64 --threads 2 --repetitions 5
  ropewalk bench smollm2 --depth 0,512 --ranks 2 --json
  ropewalk bench collectives --ranks 2 --transport tcp"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    model: Option<ModelOptions>,
    /// Tokens of the prompt; several values give several rows
    #[arg(long, short = 'p', value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens to generate; several values give several rows
    #[arg(long, short = 'n', value_name = "TOKENS", value_delimiter = ',', default_value = "128")]
    r#gen: Vec<usize>,
    /// Tokens before those generated [default: as many as in the prompt]
    #[arg(long, short = 'd', value_name = "TOKENS", value_delimiter = ',')]
    depth: Vec<usize>,
    /// Measurements per row, after one that does not count
    #[arg(long, short = 'r', value_name = "R", default_value_t = 5)]
    repetitions: usize,
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

/// One line of the result.
#[derive(Serialize)]
struct Row {
    model: String,
    layout: String,
    ranks: usize,
    tp: usize,
    pp: usize,
    threads: usize,
    transport: &'static str,
    prompt: usize,
    r#gen: usize,
    depth: usize,
    repetitions: usize,
    prefill_tok_s: Spread,
    decode_tok_s: Spread,
}

/// The middle and the ends of some measurements.
#[derive(Serialize, Clone, Copy)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Self { median: 0.0, min: 0.0, max: 0.0 };
        };
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { median: (low + high) / 2.0, min, max }
    }

    fn shown(self) -> String {
        format!("{:.1} ({:.1} to {:.1})", self.median, self.min, self.max)
    }
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
    if arguments.repetitions == 0 || arguments.prompt.contains(&0) {
        bail!("--repetitions and --prompt must be at least 1");
    }
    let Some(model) = &arguments.model else {
        bail!("name a MODEL to measure, such as smollm2, or measure links with `ropewalk bench collectives`");
    };
    let session = Session::start(model, &arguments.layout)?;
    check_lengths(arguments, session.engine.model().context)?;
    let mut rows = Vec::new();
    for &prompt in &arguments.prompt {
        for &length in &arguments.r#gen {
            let depths = if arguments.depth.is_empty() { vec![prompt] } else { arguments.depth.clone() };
            for depth in depths {
                rows.push(measure(&session, arguments, (prompt, length, depth))?);
            }
        }
    }
    if arguments.json {
        return print_json(&rows);
    }
    let cells = rows.iter().map(|row| {
        vec![
            format!("{}, {} ranks of {} threads", row.layout, row.ranks, row.threads),
            row.prompt.to_string(),
            row.prefill_tok_s.shown(),
            row.depth.to_string(),
            row.r#gen.to_string(),
            row.decode_tok_s.shown(),
        ]
    });
    let header = ["layout", "prompt", "prefill tok/s", "depth", "generated", "decode tok/s"];
    table::print(&header, &cells.collect::<Vec<_>>())
}

/// Refuses lengths that the context does not hold: figures of a run that was cut short would mislead.
fn check_lengths(arguments: &Arguments, context: usize) -> anyhow::Result<()> {
    let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    let before = longest(&arguments.prompt).max(longest(&arguments.depth)).max(1);
    let needed = before.saturating_add(longest(&arguments.r#gen));
    if needed > context {
        bail!("these lengths take up to {needed} tokens, but the context holds {context}: see --ctx-size");
    }
    Ok(())
}

/// Measures one row; the first measurement warms caches up and does not count.
fn measure(
    session: &Session,
    arguments: &Arguments,
    (prompt, length, depth): (usize, usize, usize),
) -> anyhow::Result<Row> {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for repetition in 0..=arguments.repetitions {
        let completion = request(session, repetition, prompt, if depth == prompt { length } else { 0 })?;
        prefill.push(prefill_rate(&completion));
        // A generation needs something before it: depth 0 is a single token.
        let at_depth = if depth == prompt { completion } else { request(session, repetition, depth.max(1), length)? };
        decode.push(decode_rate(&at_depth));
    }
    Ok(Row {
        model: session.engine.model().id.clone(),
        layout: session.layout.to_string(),
        ranks: session.layout.ranks(),
        tp: session.layout.tensor,
        pp: session.layout.pipeline,
        threads: session.threads,
        transport: arguments.layout.links.transport.word(),
        prompt,
        r#gen: length,
        depth,
        repetitions: arguments.repetitions,
        prefill_tok_s: Spread::of(prefill.split_off(1)),
        decode_tok_s: Spread::of(decode.split_off(1)),
    })
}

fn request(session: &Session, repetition: usize, prompt: usize, length: usize) -> anyhow::Result<Completion> {
    let vocabulary = session.engine.model().tokenizer.vocabulary();
    let request = Request {
        prompt: random_tokens(repetition as u64, prompt, vocabulary),
        max_tokens: Some(length),
        ignore_end: true,
        ..Request::default()
    };
    let completion = generate(session, request, |_| Ok(()))?.completion;
    if completion.finish == FinishReason::Cancelled {
        return Err(Interrupted.into());
    }
    Ok(completion)
}

/// Tokens that differ from repetition to repetition from the first one on, so that no KV cache helps (SplitMix64,
/// Steele et al., 2014).
fn random_tokens(seed: u64, count: usize, vocabulary: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    (0..count).map(|_| (next() % vocabulary.max(1) as u64) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
    }

    #[test]
    fn repetitions_share_no_beginning() {
        let firsts: Vec<u32> = (0..10).map(|seed| random_tokens(seed, 1, 49_152)[0]).collect();
        assert!((1..10).all(|i| !firsts[..i].contains(&firsts[i])));
    }
}
