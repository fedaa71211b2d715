//! What can be wrong with a configuration.

use std::path::PathBuf;

use thiserror::Error;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// The file that was named, or found, cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// There are mistakes in the file, each with its line.
    #[error("{}", listed(path, mistakes))]
    File { path: PathBuf, mistakes: Vec<Mistake> },
    /// A variable of the environment says what its option does not take.
    #[error("{name}: {reason}")]
    Variable { name: String, reason: String },
    /// Options that exclude each other are both set in the same place.
    #[error("{one} and {other} exclude each other: leave one of them out")]
    Contradiction { one: String, other: String },
}

/// What is wrong in one line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) line: usize,
    pub(crate) reason: String,
}

fn listed(path: &std::path::Path, mistakes: &[Mistake]) -> String {
    let line = |mistake: &Mistake| format!("{}:{}: {}", path.display(), mistake.line, mistake.reason);
    mistakes.iter().map(line).collect::<Vec<_>>().join("\nerror: ")
}
