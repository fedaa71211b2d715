//! Variables of the environment that stand for options: `ROPEWALK_SERVE_PARALLEL` for `--parallel` of `ropewalk serve`.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::error::ConfigError;
use super::{file, option};

/// The variables of a process.
pub(crate) type Variables = [(OsString, OsString)];

/// What the environment says about an option, if anything. An empty variable says nothing.
///
/// # Errors
/// If the option does not take it.
pub(crate) fn value(
    command: &Command,
    words: &[String],
    arg: &Arg,
    variables: &Variables,
) -> Result<Option<(String, Vec<String>)>, ConfigError> {
    // Options of the whole program have names of their own, which clap reads.
    if words.is_empty() {
        return Ok(None);
    }
    let name = name(words, &option::key(arg));
    let Some((_, text)) = variables.iter().find(|(other, text)| *other == *name && !text.is_empty()) else {
        return Ok(None);
    };
    let read = text.to_str().ok_or_else(|| "must be valid Unicode".to_owned()).and_then(|text| read(arg, text));
    match read.and_then(|values| option::check(command, arg, &values).map(|()| values)) {
        Ok(values) => Ok(Some((name, values))),
        Err(reason) => Err(ConfigError::Variable { name, reason }),
    }
}

/// Variables that look as if they stood for options of a command, but do not, each with a sentence that says so.
pub(crate) fn unknown(command: &Command, words: &[String], variables: &Variables) -> Vec<String> {
    let known = known(command, words);
    let prefix = name(words, "");
    let unknown = variables.iter().filter_map(|(name, _)| name.to_str()).filter(|name| {
        // The tables of inner commands have names that begin alike, and are read when those run.
        name.starts_with(&prefix) && !known.iter().any(|known| known == name)
    });
    let said = |name: &str| {
        let nearest = option::did_you_mean(option::nearest(name, known.iter().cloned()));
        format!("{name} stands for no option of `ropewalk {}` and is ignored{nearest}", words.join(" "))
    };
    if words.is_empty() { Vec::new() } else { unknown.map(said).collect() }
}

/// The names of all variables that stand for options of a command or of those inside of it.
fn known(command: &Command, words: &[String]) -> Vec<String> {
    let own = option::options(command).map(|arg| name(words, &option::key(arg)));
    let inner =
        option::commands(command).flat_map(|inner| known(inner, &[words, &[inner.get_name().to_owned()]].concat()));
    own.chain(inner).collect()
}

pub(super) fn name(words: &[String], key: &str) -> String {
    let words = words.iter().map(String::as_str).chain([key]);
    format!("ROPEWALK_{}", words.collect::<Vec<_>>().join("_")).replace('-', "_").to_uppercase()
}

/// Reads a variable: plain text, or for several values an array as in the file.
fn read(arg: &Arg, text: &str) -> Result<Vec<String>, String> {
    if option::is_switch(arg) {
        return match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(vec!["true".to_owned()]),
            "0" | "false" | "no" | "off" => Ok(vec!["false".to_owned()]),
            _ => Err("expected true or false".to_owned()),
        };
    }
    if option::is_repeated(arg) && text.starts_with('[') {
        return file::values(arg, text);
    }
    Ok(vec![text.to_owned()])
}
