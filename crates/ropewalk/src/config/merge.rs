//! The configuration and the user's arguments become one list of arguments, which is parsed as if the user had written it.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::error::ConfigError;
use super::file::Entry;
use super::option;
use super::variables::{self, Variables};

/// What an option is, and where that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The words that name the command; none for options of the whole program.
    pub(crate) command: Vec<String>,
    pub(crate) key: String,
    /// None if nothing is said and there is no default.
    pub(crate) values: Vec<String>,
    pub(crate) origin: Origin,
    pub(crate) is_switch: bool,
    pub(crate) is_repeated: bool,
    /// Whether nobody is to see the values.
    pub(crate) is_secret: bool,
}

impl Setting {
    /// Whether it is neither a flag nor a default.
    pub(crate) fn is_configured(&self) -> bool {
        matches!(self.origin, Origin::File { .. } | Origin::Variable(_))
    }
}

/// Where an option is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File { line: usize },
    Variable(String),
    Flag,
}

/// A command that is to run, or one around it.
pub(super) struct Level<'a> {
    pub(super) command: &'a Command,
    pub(super) words: Vec<String>,
    pub(super) matches: &'a ArgMatches,
    /// Where in the arguments the word stands that names it.
    place: usize,
}

/// The program, the command that `matches` says is to run, and those between.
pub(super) fn levels<'a>(root: &'a Command, matches: &'a ArgMatches, arguments: &[OsString]) -> Vec<Level<'a>> {
    let mut levels = vec![Level { command: root, words: Vec::new(), matches, place: 0 }];
    while let Some(last) = levels.last()
        && let Some((name, matches)) = last.matches.subcommand()
        && let Some(command) = last.command.find_subcommand(name)
    {
        let words = [&*last.words, &[name.to_owned()]].concat();
        let place = next_word(last.command, arguments, last.place + 1);
        levels.push(Level { command, words, matches, place });
    }
    levels
}

/// Where the word stands that names the next command: behind the options of the one before.
fn next_word(command: &Command, arguments: &[OsString], from: usize) -> usize {
    let mut place = from;
    while let Some(flag) = arguments.get(place).and_then(|word| word.to_str()?.strip_prefix("--")) {
        let is_it = |arg: &Arg| arg.get_long() == Some(flag) && !option::is_switch(arg);
        place += 1 + usize::from(command.get_arguments().any(is_it));
    }
    place
}

/// What is said about an option.
struct Given<'a> {
    arg: &'a Arg,
    values: Vec<String>,
    origin: Origin,
}

impl Given<'_> {
    /// Whether it has to become an argument, as clap does not know of it.
    fn is_configured(&self) -> bool {
        match &self.origin {
            Origin::File { .. } => true,
            Origin::Variable(name) => self.arg.get_env() != Some(name.as_ref()),
            Origin::Default | Origin::Flag => false,
        }
    }

    /// Whether it says more than that a switch is off.
    fn is_on(&self) -> bool {
        !(option::is_switch(self.arg) && self.values == ["false"])
    }

    fn excludes(&self, other: &Self, command: &Command) -> bool {
        let names = |one: &Arg, other: &Arg| {
            command.get_arg_conflicts_with(one).iter().any(|excluded| excluded.get_id() == other.get_id())
        };
        self.is_on() && other.is_on() && (names(self.arg, other.arg) || names(other.arg, self.arg))
    }

    /// Names it in an error.
    fn place(&self, level: &Level<'_>, path: Option<&Path>) -> String {
        let key = option::key(self.arg);
        match (&self.origin, path) {
            (Origin::Variable(name), _) => name.clone(),
            (Origin::File { line }, Some(path)) => {
                format!("{}:{line}: [{}] {key}", path.display(), level.words.join("."))
            }
            _ => format!("--{key}"),
        }
    }
}

/// The configuration of a command that is to run.
pub(super) struct Merged {
    /// The arguments, among them those that stand for what is configured.
    pub(super) arguments: Vec<OsString>,
    /// All options of the command, and those of the whole program.
    pub(super) settings: Vec<Setting>,
}

/// What a file says, and its path.
pub(super) type FileEntries<'a> = Option<(&'a Path, &'a [Entry])>;

/// Puts together what the user's arguments, the environment and a file say.
pub(super) fn merge(
    levels: &[Level<'_>],
    arguments: &[OsString],
    variables: &Variables,
    file: FileEntries<'_>,
) -> Result<Merged, ConfigError> {
    let mut merged = Merged { arguments: Vec::new(), settings: Vec::new() };
    let (mut rest, mut positionals) = (arguments, Vec::new());
    for (number, level) in levels.iter().enumerate() {
        let given = if is_passed_over(levels, number) { Vec::new() } else { given(level, variables, file)? };
        let done = arguments.len() - rest.len();
        let (before, after) = rest.split_at((level.place + 1).saturating_sub(done).min(rest.len()));
        merged.arguments.extend_from_slice(before);
        rest = after;
        merged.arguments.extend(flags(&given));
        positionals = words(level, &given);
        merged.settings.extend(settings(level, &given));
    }
    merged.arguments.extend_from_slice(rest);
    merged.arguments.extend(positionals.into_iter().map(OsString::from));
    Ok(merged)
}

/// Whether the options of a command do not count, as one inside of it is to run.
fn is_passed_over(levels: &[Level<'_>], number: usize) -> bool {
    number + 1 < levels.len() && levels[number].command.is_args_conflicts_with_subcommands_set()
}

/// What is said about the options of a command: each by the one who has the last word on it. What excludes something that a
/// later one says is left out.
fn given<'a>(level: &Level<'a>, variables: &Variables, file: FileEntries<'_>) -> Result<Vec<Given<'a>>, ConfigError> {
    let command = level.command;
    let source = |arg: &Arg| level.matches.value_source(arg.get_id().as_str());
    let parsed = |arg: &'a Arg, origin| Given { arg, values: raw(level.matches, arg), origin };
    let flags = option::options(command).filter(|arg| source(arg) == Some(ValueSource::CommandLine));
    let flags: Vec<_> = flags.map(|arg| parsed(arg, Origin::Flag)).collect();
    let mut named = Vec::new();
    for arg in option::options(command) {
        if let Some((name, values)) = variables::value(command, &level.words, arg, variables)? {
            named.push(Given { arg, values, origin: Origin::Variable(name) });
        }
    }
    // Some options have a variable of another name, which clap has read.
    let others = option::options(command).filter(|arg| source(arg) == Some(ValueSource::EnvVariable));
    let name = |arg: &Arg| arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let others = others.map(|arg| parsed(arg, Origin::Variable(name(arg)))).collect();
    let entries = file.map_or(&[][..], |(_, entries)| entries).iter().filter(|entry| entry.command == level.words);
    let in_file = entries.filter_map(|entry| {
        let arg = option::options(command).find(|arg| *arg.get_id() == entry.id)?;
        Some(Given { arg, values: entry.values.clone(), origin: Origin::File { line: entry.line } })
    });
    let in_file = in_file.collect();

    let mut given: Vec<Given<'a>> = flags;
    for layer in [named, others, in_file] {
        let above = given.len();
        for new in layer {
            let (later, same) = given.split_at(above);
            let hidden = |other: &Given<'_>| other.arg.get_id() == new.arg.get_id() || other.excludes(&new, command);
            if later.iter().any(hidden) {
                continue;
            }
            if let Some(other) = same.iter().find(|other| other.excludes(&new, command)) {
                let place = |given: &Given<'_>| given.place(level, file.map(|(path, _)| path));
                return Err(ConfigError::Contradiction { one: place(other), other: place(&new) });
            }
            given.push(new);
        }
    }
    Ok(given)
}

/// The values of an option that clap has read.
fn raw(matches: &ArgMatches, arg: &Arg) -> Vec<String> {
    if option::is_switch(arg) {
        return vec![matches.get_flag(arg.get_id().as_str()).to_string()];
    }
    let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    values.map(|value| value.to_string_lossy().into_owned()).collect()
}

/// Arguments for all options with flags that are configured.
fn flags(given: &[Given<'_>]) -> Vec<OsString> {
    let configured = given.iter().filter(|given| !given.arg.is_positional() && given.is_configured());
    let flags = configured.flat_map(|given| {
        let key = option::key(given.arg);
        match option::is_switch(given.arg) {
            true => given.is_on().then(|| format!("--{key}")).into_iter().collect(),
            false => option::flags(&key, &given.values).collect::<Vec<_>>(),
        }
    });
    flags.map(OsString::from).collect()
}

/// Arguments for the positional options that are configured, as far as all those before them are there.
fn words(level: &Level<'_>, given: &[Given<'_>]) -> Vec<String> {
    let find = |arg: &Arg| given.iter().find(|given| given.arg.get_id() == arg.get_id());
    let there = level.command.get_positionals().map_while(find);
    there.filter(|given| given.is_configured()).flat_map(|given| given.values.clone()).collect()
}

/// What all options of a command are.
fn settings(level: &Level<'_>, given: &[Given<'_>]) -> Vec<Setting> {
    let setting = |arg: &Arg| {
        let found = given.iter().find(|given| given.arg.get_id() == arg.get_id());
        let (values, origin) = found
            .map_or_else(|| (defaults(arg), Origin::Default), |given| (given.values.clone(), given.origin.clone()));
        Setting {
            command: level.words.clone(),
            key: option::key(arg),
            values,
            origin,
            is_switch: option::is_switch(arg),
            is_repeated: option::is_repeated(arg),
            is_secret: option::is_secret(arg),
        }
    };
    option::options(level.command).map(setting).collect()
}

fn defaults(arg: &Arg) -> Vec<String> {
    if option::is_switch(arg) {
        return vec!["false".to_owned()];
    }
    arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect()
}
