//! `ropewalk perplexity`: how well a model predicts a text.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use engine::{FinishReason, Request};
use indicatif::{ProgressBar, ProgressStyle};
use model::EncodeOptions;
use serde_json::json;

use super::{generate, print_json, print_now};
use crate::interrupt::Interrupted;
use crate::options::{LayoutOptions, ModelOptions};
use crate::session::Session;
use crate::text;

/// Tokens per window, unless --ctx-size says otherwise; as other programs have it, so that figures compare.
const WINDOW: usize = 512;
/// In shorter windows no token counts.
const WINDOW_MIN: usize = 4;

/// Measure how well a model predicts a text
///
/// The text is cut into windows of --ctx-size tokens (512 by default). Each is evaluated by itself, and the tokens of
/// its second half count, so that each has at least half a window before it. This is llama.cpp's method.
#[derive(Args)]
#[command(after_help = "Example:\n  ropewalk perplexity smollm2 book.txt --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelOptions,
    /// The text; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Look only at the first windows
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) layout: LayoutOptions,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let window = arguments.layout.ctx_size.unwrap_or(WINDOW);
    if window < WINDOW_MIN || arguments.chunks == Some(0) {
        bail!("nothing would be measured: --ctx-size must be at least {WINDOW_MIN}, --chunks at least 1");
    }
    let text = text::read(&arguments.file)?;
    // The engine keeps a place for an answer that is not wanted here.
    let layout = LayoutOptions { ctx_size: Some(window + 1), ..arguments.layout.clone() };
    let session = Session::start(&arguments.model, &layout)?;
    let tokenizer = &session.engine.model().tokenizer;
    let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false })?;
    let windows = (tokens.len() / window).min(arguments.chunks.unwrap_or(usize::MAX));
    if windows == 0 {
        bail!("the text has {} tokens, less than one window of {window}: take a longer one", tokens.len());
    }
    let begin = tokenizer.bos().filter(|&bos| tokens.first() == Some(&bos));
    let progress = progress(windows);
    let (mut sum, mut count) = (0.0, 0);
    for window_tokens in tokens.chunks_exact(window).take(windows) {
        let mut prompt = window_tokens.to_vec();
        // Models that want a beginning get one in every window.
        prompt[0] = begin.unwrap_or(prompt[0]);
        let logprobs = logprobs(&session, prompt)?;
        let counted = &logprobs[window / 2 + 1..];
        sum -= counted.iter().map(|&logprob| f64::from(logprob)).sum::<f64>();
        count += counted.len();
        progress.inc(1);
    }
    progress.finish_and_clear();
    let perplexity = (sum / count as f64).exp();
    if arguments.json {
        return print_json(&json!({
            "model": session.engine.model().id,
            "perplexity": perplexity,
            "tokens": count,
            "windows": windows,
            "window_tokens": window,
        }));
    }
    print_now(&format!("perplexity {perplexity:.4} over {count} tokens in {windows} windows of {window}\n"))
}

/// The log-probability of every token of a window, given those before it; 0 for the first.
fn logprobs(session: &Session, prompt: Vec<u32>) -> anyhow::Result<Vec<f32>> {
    let request = Request { prompt, max_tokens: Some(0), prompt_logprobs: Some(0), ..Request::default() };
    let answer = generate(session, request, |_| Ok(()))?;
    if answer.completion.finish == FinishReason::Cancelled {
        return Err(Interrupted.into());
    }
    Ok(answer.prompt.iter().map(|token| token.logprob.unwrap_or(0.0)).collect())
}

fn progress(windows: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(windows as u64);
    // The template is a constant; the default style serves should it be wrong.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} windows, {eta} left") {
        bar.set_style(style);
    }
    bar
}
