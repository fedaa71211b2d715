//! `ropewalk tokenize`: what the model sees of a text.

use std::path::PathBuf;

use clap::Args;
use model::{EncodeOptions, Tokenizer};
use serde_json::json;

use super::{print_json, print_now};
use crate::models;
use crate::options::ModelOptions;
use crate::text;

/// Show the tokens of a text
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk tokenize smollm2 -p \"Hello world\"
  ropewalk tokenize smollm2 -f file.txt --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelOptions,
    /// The text
    #[arg(long, short = 'p', value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the text; - reads standard input
    #[arg(long, short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Do not add the tokens that the model wants at the beginning and the end
    #[arg(long)]
    no_special: bool,
    /// Treat the text of special tokens as plain text
    #[arg(long)]
    no_parse_special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let text = text::prompt(arguments.prompt.as_deref(), arguments.file.as_deref())?;
    let (_, file) = models::open(&arguments.model)?;
    let tokenizer = Tokenizer::from_gguf(&file)?;
    let options = EncodeOptions { add_special: !arguments.no_special, parse_special: !arguments.no_parse_special };
    let ids = tokenizer.encode(&text, options)?;
    if arguments.json {
        let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.token_text(id)).collect();
        return print_json(&json!({ "tokens": ids, "pieces": pieces, "count": ids.len() }));
    }
    let lines: String = ids.iter().map(|&id| format!("{id:>7}  {:?}\n", tokenizer.token_text(id))).collect();
    print_now(&lines)
}
