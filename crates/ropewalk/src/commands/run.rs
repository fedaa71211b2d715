//! `ropewalk run`: completes one prompt.

use std::path::PathBuf;

use clap::Args;
use engine::{FinishReason, Request};
use model::EncodeOptions;
use serde_json::json;

use super::{decode_rate, generate, prefill_rate, print_json, print_now};
use crate::interrupt::Interrupted;
use crate::options::{LayoutOptions, ModelOptions, SamplingOptions};
use crate::session::Session;
use crate::text;

/// Complete a prompt
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk run smollm2 -p \"Once upon a time\" -n 64
  ropewalk run smollm2 --chat -p \"Why is the sky blue?\"
  ropewalk run ./model.gguf -f prompt.txt --temp 0 --ranks 2 --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelOptions,
    /// The prompt
    #[arg(long, short = 'p', value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the prompt; - reads standard input
    #[arg(long, short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Treat the prompt as a message and use the model's chat template
    #[arg(long)]
    chat: bool,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Most tokens to generate [default: to the end of the context]
    #[arg(long, short = 'n', value_name = "N")]
    n_predict: Option<usize>,
    /// Go on past the model's end of text
    #[arg(long)]
    ignore_eos: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) layout: LayoutOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let prompt = text::prompt(arguments.prompt.as_deref(), arguments.file.as_deref())?;
    let session = Session::start(&arguments.model, &arguments.layout)?;
    let model = session.engine.model();
    let tokens = if arguments.chat {
        let system = arguments.system.as_deref().map(|system| text::message("system", system));
        let messages: Vec<_> = system.into_iter().chain([text::message("user", &prompt)]).collect();
        text::conversation(model, &messages)?
    } else {
        model.tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: true })?
    };
    let request = Request {
        prompt: tokens,
        sampling: arguments.sampling.sampling(),
        max_tokens: arguments.n_predict,
        stop: arguments.sampling.stop.clone(),
        ignore_end: arguments.ignore_eos,
        ..Request::default()
    };
    let show = |text: &str| if arguments.json { Ok(()) } else { print_now(text) };
    let answer = generate(&session, request, show)?;
    let completion = &answer.completion;
    if arguments.json {
        print_json(&json!({
            "model": session.engine.model().id,
            "layout": session.layout.to_string(),
            "threads": session.threads,
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": completion.finish,
            "prompt_tokens": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": completion.completion_tokens,
            "prefill_tok_s": prefill_rate(completion),
            "decode_tok_s": decode_rate(completion),
            "ttft_ms": completion.timings.ttft_ms,
            "load_ms": session.load_ms,
            "ranks": completion.ranks,
        }))?;
    } else {
        print_now("\n")?;
    }
    if completion.finish == FinishReason::Cancelled {
        return Err(Interrupted.into());
    }
    Ok(())
}
