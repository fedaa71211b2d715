//! `ropewalk config`: what options are, and where that is said.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, CommandFactory};
use serde_json::{Value, json};

use super::{print_json, print_now};
use crate::config::{self, ConfigOptions, Failure, Loaded, Origin, Setting};
use crate::table;

/// Show the options of a command as file, environment and flags set them
///
/// Options come from a file, from variables of the environment and from flags; the latter win. The file is TOML, with a
/// table for each command and a key for each of its long flags; `models = [...]` and the like stand for arguments without a
/// flag. ROPEWALK_SERVE_PARALLEL is the variable for --parallel of `ropewalk serve`.
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk config
  ropewalk config serve
  ropewalk config serve --parallel 8
  ropewalk config --json serve
  ropewalk config --path
A configuration file may read:
  [serve]
  models = [\"smollm2\"]
  listen = \"127.0.0.1:8080\"
  parallel = 8
  encrypt = true")]
pub(crate) struct Arguments {
    /// Print the path of the file that is read, or that would be if it existed
    #[arg(long, conflicts_with = "command")]
    path: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The command, with flags if you like [default: all commands, but only what is set]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments, options: &ConfigOptions) -> anyhow::Result<()> {
    if arguments.path {
        return print_path(options, arguments.json);
    }
    let (file, settings) = if arguments.command.is_empty() {
        all(options)?
    } else {
        let loaded = load(options, &arguments.command)?;
        (loaded.file, loaded.settings)
    };
    let file = file.map(|path| path.display().to_string());
    if arguments.json {
        let settings: Vec<_> = settings.iter().map(|setting| as_json(setting, file.as_deref())).collect();
        return print_json(&json!({ "file": file, "options": settings }));
    }
    let rows: Vec<_> = settings.iter().map(|setting| row(setting, file.as_deref())).collect();
    let header = file.as_deref().map_or("no configuration file is read".to_owned(), |file| format!("{file} is read"));
    print_now(&format!("{header}\n"))?;
    table::print(&["option", "value", "from"], &rows)
}

fn print_path(options: &ConfigOptions, as_json: bool) -> anyhow::Result<()> {
    let path =
        options.expected_file().context("there is no home folder and no XDG_CONFIG_HOME: name a file with --config")?;
    let path = path.display();
    if as_json {
        return print_json(&json!({ "path": path.to_string(), "read": options.file().is_some() }));
    }
    print_now(&format!("{path}\n"))
}

/// What is set of all commands.
fn all(options: &ConfigOptions) -> anyhow::Result<(Option<PathBuf>, Vec<Setting>)> {
    let (mut file, mut set) = (None, Vec::new());
    for words in config::command_names(&crate::Arguments::command()) {
        let words: Vec<_> = words.into_iter().map(OsString::from).collect();
        let loaded = load(options, &words)?;
        file = loaded.file;
        for setting in loaded.settings {
            // Options of the whole program come with each command.
            if setting.origin != Origin::Default && !set.contains(&setting) {
                set.push(setting);
            }
        }
    }
    Ok((file, set))
}

/// The configuration of a command that is named by words, and may have flags.
fn load(options: &ConfigOptions, words: &[OsString]) -> anyhow::Result<Loaded> {
    let root = crate::Arguments::command();
    let names: Vec<_> = config::commands(&root).map(clap::Command::get_name).collect();
    if let Some(word) = words.first().filter(|word| !names.iter().any(|name| word == name)) {
        bail!("{word:?} is no command that can be configured: name one of {}", names.join(", "));
    }
    // Before the command, for one with commands of its own takes no options before these.
    let mut arguments = vec![OsString::from(root.get_name())];
    if let Some(file) = &options.config {
        arguments.extend(["--config".into(), file.into()]);
    }
    if options.no_config {
        arguments.push("--no-config".into());
    }
    arguments.extend_from_slice(words);
    let variables: Vec<_> = std::env::vars_os().collect();
    let loaded = config::load(&root, arguments, &variables).map_err(|failure| match failure {
        Failure::Usage(error) => error.exit(),
        Failure::Config(error) => error,
    })?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(loaded)
}

fn name(setting: &Setting) -> String {
    setting.command.iter().map(String::as_str).chain([&*setting.key]).collect::<Vec<_>>().join(".")
}

fn row(setting: &Setting, file: Option<&str>) -> Vec<String> {
    let value = match (&*setting.values, setting.is_secret) {
        ([], _) => "-".to_owned(),
        (_, true) => "(secret)".to_owned(),
        (values, false) => values.join(", "),
    };
    let from = match &setting.origin {
        Origin::Default => "default".to_owned(),
        Origin::File { line } => format!("{}:{line}", file.unwrap_or_default()),
        Origin::Variable(name) => name.clone(),
        Origin::Flag => "flag".to_owned(),
    };
    vec![name(setting), value, from]
}

fn as_json(setting: &Setting, file: Option<&str>) -> Value {
    let value = match (&*setting.values, setting.is_secret) {
        ([], _) | (_, true) => Value::Null,
        ([value], false) if setting.is_switch => json!(value == "true"),
        (values, false) if setting.is_repeated => json!(values),
        (values, false) => json!(values.join(",")),
    };
    let (kind, place) = match &setting.origin {
        Origin::Default => ("default", Value::Null),
        Origin::File { line } => ("file", json!(format!("{}:{line}", file.unwrap_or_default()))),
        Origin::Variable(name) => ("variable", json!(name)),
        Origin::Flag => ("flag", Value::Null),
    };
    let (command, option) = (setting.command.join(" "), &setting.key);
    json!({ "command": command, "option": option, "value": value, "secret": setting.is_secret, "from": kind, "place": place })
}
