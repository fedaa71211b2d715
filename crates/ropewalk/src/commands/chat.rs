//! `ropewalk chat`: a conversation on the terminal.

use std::io::{BufRead, IsTerminal};

use clap::Args;
use engine::{Request, SubmitError};
use model::ModelError;

use super::{decode_rate, generate, print_now};
use crate::options::{LayoutOptions, ModelOptions, SamplingOptions};
use crate::session::Session;
use crate::text;

/// Talk to a model
///
/// Ctrl-C stops an answer; at the prompt Ctrl-D or /exit ends the conversation, /clear begins a new one.
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk chat smollm2
  ropewalk chat smollm2 --system \"Answer in one sentence.\" --ranks 2")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelOptions,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of one answer [default: to the end of the context]
    #[arg(long, short = 'n', value_name = "N")]
    n_predict: Option<usize>,
    #[command(flatten)]
    pub(crate) layout: LayoutOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let session = Session::start(&arguments.model, &arguments.layout)?;
    let interactive = std::io::stdin().is_terminal();
    text::require_template(session.engine.model())?;
    if interactive {
        eprintln!("{} is ready. Ctrl-C stops an answer, Ctrl-D ends the conversation.", session.engine.model().id);
    }
    let beginning: Vec<_> = arguments.system.iter().map(|system| text::message("system", system)).collect();
    let mut messages = beginning.clone();
    loop {
        if interactive {
            print_now("> ")?;
        }
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/clear" => messages.clone_from(&beginning),
            question => {
                messages.push(text::message("user", question));
                if let Err(error) = answer(&session, arguments, &mut messages) {
                    // A question that cannot be asked ends the conversation only if nobody is there to ask another.
                    let refused = error.is::<SubmitError>() || error.is::<ModelError>();
                    if !interactive || !refused || session.engine.status().failure.is_some() {
                        return Err(error);
                    }
                    messages.pop();
                    eprintln!("error: {error:#} (/clear begins a new conversation)");
                }
            }
        }
    }
}

/// Answers the conversation's last message and adds the answer to it.
fn answer(session: &Session, arguments: &Arguments, messages: &mut Vec<serde_json::Value>) -> anyhow::Result<()> {
    let request = Request {
        prompt: text::conversation(session.engine.model(), messages)?,
        sampling: arguments.sampling.sampling(),
        max_tokens: arguments.n_predict,
        stop: arguments.sampling.stop.clone(),
        ..Request::default()
    };
    let answer = generate(session, request, print_now)?;
    print_now("\n")?;
    if std::io::stderr().is_terminal() {
        eprintln!(
            "[{} tokens, {:.1} per second]",
            answer.completion.completion_tokens,
            decode_rate(&answer.completion)
        );
    }
    messages.push(text::message("assistant", &answer.text));
    Ok(())
}
