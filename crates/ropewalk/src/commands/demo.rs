//! `ropewalk demo`: a real model answers a question on two ranks, and the figures are shown.

use clap::Args;
use engine::{FinishReason, Request, Sampling};
use serde_json::json;

use super::{Answer, decode_rate, generate, prefill_rate, print_json, print_now};
use crate::interrupt::Interrupted;
use crate::options::{LayoutOptions, LinkOptions, ModelOptions};
use crate::session::Session;
use crate::{table, text};

/// Fetch a small model, let two processes share its work, and ask it a question
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk demo
  ropewalk demo -p \"What is a rope made of?\" --ranks 3")]
pub(crate) struct Arguments {
    /// The question
    #[arg(long, short = 'p', value_name = "TEXT", default_value = "Why do sailors twist strands into rope?")]
    prompt: String,
    /// Most tokens of the answer
    #[arg(long, short = 'n', value_name = "N", default_value_t = 160)]
    n_predict: usize,
    /// Processes that share the work
    #[arg(long, value_name = "N", default_value_t = 2)]
    ranks: usize,
    #[command(flatten)]
    links: LinkOptions,
    /// Never download; fail if the model is not on this machine
    #[arg(long)]
    offline: bool,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let model = ModelOptions { model: "smollm2".to_owned(), offline: arguments.offline };
    let layout = LayoutOptions { links: arguments.links.clone(), ..LayoutOptions::local(arguments.ranks) };
    let session = Session::start(&model, &layout)?;
    if !arguments.json {
        let (model, ranks, layout) = (&session.engine.model().id, session.layout.ranks(), &session.layout);
        print_now(&format!("{model} on {ranks} ranks ({layout})\n\n> {}\n\n", arguments.prompt))?;
    }
    let request = Request {
        prompt: text::conversation(session.engine.model(), &[text::message("user", &arguments.prompt)])?,
        sampling: Sampling { repetition_penalty: 1.1, repetition_window: 64, ..Sampling::default() },
        max_tokens: Some(arguments.n_predict),
        ..Request::default()
    };
    let show = |text: &str| if arguments.json { Ok(()) } else { print_now(text) };
    let answer = generate(&session, request, show)?;
    if arguments.json {
        print_figures_json(&session, &answer)?;
    } else {
        print_figures(&session, &answer)?;
    }
    if answer.completion.finish == FinishReason::Cancelled {
        return Err(Interrupted.into());
    }
    Ok(())
}

fn print_figures(session: &Session, answer: &Answer) -> anyhow::Result<()> {
    let completion = &answer.completion;
    let speed = |name: &str, tokens: usize, rate: f64| vec![name.to_owned(), tokens.to_string(), format!("{rate:.1}")];
    let speeds = [
        speed("prefill", completion.prompt_tokens, prefill_rate(completion)),
        speed("decode", completion.completion_tokens, decode_rate(completion)),
    ];
    let ranks = completion.ranks.iter().enumerate().map(|(rank, time)| {
        let total = (time.compute_ms + time.wait_ms).max(f64::MIN_POSITIVE);
        vec![
            format!("rank {rank}"),
            format!("{:.0} ms", time.compute_ms),
            format!("{:.0} ms ({:.0}%)", time.wait_ms, time.wait_ms / total * 100.0),
            table::bytes(time.peak_rss_bytes),
        ]
    });
    print_now(&format!(
        "\n\n{}\ntime to first token {:.0} ms, loaded in {:.0} ms\n\n{}",
        table::render(&["", "tokens", "per second"], &speeds),
        completion.timings.ttft_ms,
        session.load_ms,
        table::render(&["", "compute", "waiting", "peak memory"], &ranks.collect::<Vec<_>>()),
    ))
}

fn print_figures_json(session: &Session, answer: &Answer) -> anyhow::Result<()> {
    let completion = &answer.completion;
    print_json(&json!({
        "model": session.engine.model().id,
        "layout": session.layout.to_string(),
        "text": answer.text,
        "tokens": answer.tokens,
        "prompt_tokens": completion.prompt_tokens,
        "prefill_tok_s": prefill_rate(completion),
        "decode_tok_s": decode_rate(completion),
        "ttft_ms": completion.timings.ttft_ms,
        "load_ms": session.load_ms,
        "ranks": completion.ranks,
    }))
}
