//! Configuration by file, environment and flags, of which later ones win.
//!
//! Nothing here knows any option. All of them are found by looking at clap's commands, and what is configured is put
//! between the user's arguments as flags, so that clap judges the whole: what is required, and what excludes what. Only
//! where a flag excludes what a file says does the flag win.

mod error;
mod file;
mod merge;
mod option;
mod place;
#[cfg(test)]
mod tests;
mod variables;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command};
use thiserror::Error;

pub(crate) use self::error::ConfigError;
pub(crate) use self::merge::{Origin, Setting};
pub(crate) use self::option::{SHOWING, command_names, commands};

/// Where the configuration is.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct ConfigOptions {
    /// File to read options from; see `ropewalk config` [default: config.toml in ropewalk's configuration folder, if there
    /// is one]
    #[arg(long, value_name = "FILE", env = "ROPEWALK_CONFIG", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Take options neither from a file nor from variables such as ROPEWALK_SERVE_LISTEN
    #[arg(long, global = true)]
    pub(crate) no_config: bool,
}

impl ConfigOptions {
    /// The file to read, if there is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        if self.no_config {
            return None;
        }
        self.config.clone().or_else(|| place::usual().into_iter().find(|path| path.exists()))
    }

    /// The file to read, or else the one that would be read if it existed.
    pub(crate) fn expected_file(&self) -> Option<PathBuf> {
        self.file().or_else(|| place::usual().into_iter().next())
    }
}

/// A command line with all that is configured.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The arguments, among them those that stand for what is configured. They may still lack something.
    pub(crate) arguments: Vec<OsString>,
    /// All options of the command, and those of the whole program.
    pub(crate) settings: Vec<Setting>,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// What is probably a mistake.
    pub(crate) warnings: Vec<String>,
}

/// Why there is no command to run.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The user's arguments are wrong, or ask for help.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The configuration is.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Adds to `arguments` of the program `root` what is configured.
///
/// # Errors
/// If the user's own arguments cannot be used, or the configuration cannot.
pub(crate) fn load(
    root: &Command,
    arguments: Vec<OsString>,
    variables: &[(OsString, OsString)],
) -> Result<Loaded, Failure> {
    let matches = parse(root, &arguments)?;
    let options =
        ConfigOptions { config: matches.get_one("config").cloned(), no_config: matches.get_flag("no_config") };
    let shows = matches.subcommand_name() == Some(SHOWING);
    let variables = if options.no_config || shows { &[] } else { variables };
    let file = options.file().filter(|_| !shows);
    let entries = file.as_ref().map(|path| file::read(root, path)).transpose()?;
    let levels = merge::levels(root, &matches, &arguments);
    let entries = file.as_deref().zip(entries.as_deref());
    let merged = merge::merge(&levels, &arguments, variables, entries)?;
    let last = levels.last().map(|last| variables::unknown(last.command, &last.words, variables));
    Ok(Loaded { arguments: merged.arguments, settings: merged.settings, warnings: last.unwrap_or_default(), file })
}

/// Parses the user's own arguments, which may lack what is configured.
fn parse(root: &Command, arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    match root.clone().try_get_matches_from(arguments) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            root.clone().ignore_errors(true).try_get_matches_from(arguments)
        }
        result => result,
    }
}
