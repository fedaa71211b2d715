//! Joins the machines on a desk into one that runs language models: the command line.
#![forbid(unsafe_code)]

mod commands;
mod config;
mod group;
mod http;
mod interrupt;
mod job;
mod keys;
mod launched;
mod logging;
mod measure;
mod models;
mod offers;
mod options;
mod progress;
mod ranks;
mod reload;
mod session;
mod table;
mod text;
mod tls;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{ConfigOptions, Failure, Loaded, Setting};
use crate::launched::Follower;
use crate::logging::LogOptions;

/// Joins the machines on a desk into one that runs language models.
#[derive(Parser)]
#[command(name = "ropewalk", version, max_term_width = 100, after_help = "Example:\n  ropewalk demo")]
struct Arguments {
    #[command(flatten)]
    config: ConfigOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(commands::demo::Arguments),
    Run(commands::run::Arguments),
    Chat(commands::chat::Arguments),
    Serve(Box<commands::serve::Arguments>),
    Bench(Box<commands::bench::Arguments>),
    Link(commands::link::Arguments),
    Perplexity(commands::perplexity::Arguments),
    Tokenize(commands::tokenize::Arguments),
    Inspect(commands::inspect::Arguments),
    Pull(commands::store::PullArguments),
    List(commands::store::ListArguments),
    Rm(commands::store::RemoveArguments),
    Rank(commands::rank::Arguments),
    Config(commands::config::Arguments),
}

fn main() -> ExitCode {
    let (mut arguments, loaded) = match configured(std::env::args_os().collect()) {
        Ok(configured) => configured,
        Err(Failure::Usage(error)) => error.exit(),
        Err(Failure::Config(error)) => return report(&error.into()),
    };
    let log = match &arguments.command {
        Command::Serve(arguments) => arguments.log.clone(),
        _ => LogOptions::default(),
    };
    log.install();
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = check_environment() {
        return report(&error);
    }
    let result = match arguments.command.follower() {
        Ok(Some(follower)) => commands::rank::follow(&follower),
        Ok(None) => run(arguments, loaded),
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// What the user's arguments and the configuration together say.
fn configured(arguments: Vec<OsString>) -> Result<(Arguments, Loaded), Failure> {
    let variables: Vec<_> = std::env::vars_os().collect();
    let loaded = config::load(&Arguments::command(), arguments, &variables)?;
    let parsed = Arguments::try_parse_from(&loaded.arguments);
    if parsed.is_err() && loaded.settings.iter().any(Setting::is_configured) {
        eprintln!("note: options come from the configuration as well; `ropewalk config` shows which");
    }
    Ok((parsed?, loaded))
}

impl Command {
    /// What this process has to do instead, when a launcher has started it as a rank of another one's group.
    fn follower(&mut self) -> anyhow::Result<Option<Follower>> {
        let launchable = match self {
            Self::Run(arguments) => arguments.layout.launchable(),
            Self::Chat(arguments) => arguments.layout.launchable(),
            Self::Serve(arguments) => arguments.layout.launchable(),
            Self::Perplexity(arguments) => arguments.layout.launchable(),
            Self::Bench(arguments) => arguments.launchable(),
            Self::Link(arguments) => arguments.group.launchable(),
            _ => return Ok(None),
        };
        launchable.ask_environment()
    }
}

/// Refuses a choice of kernels that there is not.
fn check_environment() -> anyhow::Result<()> {
    let (name, choices) = kernels::INSTRUCTIONS;
    match std::env::var(name) {
        Ok(choice) if !choices.contains(&choice.as_str()) => {
            anyhow::bail!("{name} is {choice:?}, but must be one of {}", choices.join(", "))
        }
        _ => Ok(()),
    }
}

fn run(arguments: Arguments, loaded: Loaded) -> anyhow::Result<()> {
    match arguments.command {
        Command::Demo(arguments) => commands::demo::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Chat(arguments) => commands::chat::run(&arguments),
        Command::Serve(arguments) => commands::serve::run(&arguments, loaded),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Link(arguments) => commands::link::run(&arguments),
        Command::Perplexity(arguments) => commands::perplexity::run(&arguments),
        Command::Tokenize(arguments) => commands::tokenize::run(&arguments),
        Command::Inspect(arguments) => commands::inspect::run(&arguments),
        Command::Pull(arguments) => commands::store::pull(&arguments),
        Command::List(arguments) => commands::store::list(&arguments),
        Command::Rm(arguments) => commands::store::remove(&arguments),
        Command::Rank(arguments) => commands::rank::run(&arguments),
        Command::Config(command) => commands::config::run(&command, &arguments.config),
    }
}

/// Says what went wrong and picks the exit code. A reader that closed the pipe wanted no more, which is no error.
fn report(error: &anyhow::Error) -> ExitCode {
    let pipe_closed = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe);
    if pipe_closed {
        return ExitCode::SUCCESS;
    }
    if error.is::<interrupt::Interrupted>() {
        return ExitCode::from(interrupt::EXIT_CODE);
    }
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
