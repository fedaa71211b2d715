//! What can be configured: the options of clap's commands, found by looking at them, so that none needs code of its own.

use std::any::TypeId;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

/// Options that say where the configuration is, and so cannot be part of it.
const ABOUT_CONFIGURATION: [&str; 2] = ["config", "no_config"];
/// The command that shows the configuration. It has none of its own, so that it always does what it is told.
pub(crate) const SHOWING: &str = "config";

/// The options of a command that can be configured.
pub(crate) fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
        let named = arg.get_long().is_some() || arg.is_positional();
        takes && named && !arg.is_hide_set() && !ABOUT_CONFIGURATION.contains(&arg.get_id().as_str())
    })
}

/// The commands of a command that can be configured.
pub(crate) fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| ![SHOWING, "help"].contains(&command.get_name()))
}

/// The words that name each command that can be configured, those inside of others among them.
pub(crate) fn command_names(root: &Command) -> Vec<Vec<String>> {
    let mut names = Vec::new();
    for command in commands(root) {
        let name = vec![command.get_name().to_owned()];
        names.push(name.clone());
        names.extend(command_names(command).into_iter().map(|inner| [&*name, &*inner].concat()));
    }
    names
}

/// What an option is called in the configuration: its long flag, or for a positional one its name.
pub(crate) fn key(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), str::to_owned)
}

/// The option of that name.
pub(crate) fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    options(command).find(|arg| key(arg) == name)
}

/// Whether an option is either on or off.
pub(crate) fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether an option may be given several values.
pub(crate) fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_num_args().is_some_and(|count| count.max_values() > 1)
}

/// Whether nobody is to see an option's value.
pub(crate) fn is_secret(arg: &Arg) -> bool {
    arg.is_hide_env_values_set()
}

/// Which values of a configuration file an option takes. What they say is for the option's own parser to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Boolean,
    Text,
    Number,
    /// What the option's parser makes of it.
    TextOrNumber,
}

impl Shape {
    pub(crate) fn of(arg: &Arg) -> Self {
        let parsed = arg.get_value_parser().type_id();
        let is = |types: &[TypeId]| types.iter().any(|of| parsed == *of);
        if is_switch(arg) || is(&[TypeId::of::<bool>()]) {
            Self::Boolean
        } else if is(&[TypeId::of::<String>(), TypeId::of::<OsString>(), TypeId::of::<PathBuf>()]) {
            Self::Text
        } else if is(&numbers()) && arg.get_value_delimiter().is_none() {
            Self::Number
        } else {
            Self::TextOrNumber
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Text => "a string",
            Self::Number => "a number",
            Self::TextOrNumber => "a string or a number",
        }
    }
}

fn numbers() -> [TypeId; 12] {
    [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i8>(),
        TypeId::of::<i16>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<isize>(),
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
    ]
}

/// Has the option's own parser judge `values`.
///
/// # Errors
/// What it says against them.
pub(crate) fn check(command: &Command, arg: &Arg, values: &[String]) -> Result<(), String> {
    if is_switch(arg) {
        return Ok(());
    }
    if arg.is_positional() && values.iter().any(|value| value.starts_with('-')) {
        return Err("must not begin with a hyphen".to_owned());
    }
    let id = arg.get_id();
    // The command alone, without what the environment says. A positional option gets its name as a flag for it.
    let mut alone = command.clone().mut_args(|arg| arg.env(None::<&'static str>));
    if arg.is_positional() {
        alone = alone.mut_arg(arg.get_id().as_str(), |arg| arg.long(id.clone()));
    }
    let flag = arg.get_long().unwrap_or(id.as_str());
    let words = std::iter::once(command.get_name().to_owned()).chain(flags(flag, values));
    let Err(error) = alone.try_get_matches_from(words) else { return Ok(()) };
    match error.kind() {
        // These are said of what else the command needs, after all values have been read.
        ErrorKind::MissingRequiredArgument
        | ErrorKind::ArgumentConflict
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(()),
        _ => Err(reason(&error)),
    }
}

/// An option with values as arguments.
pub(crate) fn flags(flag: &str, values: &[String]) -> impl Iterator<Item = String> {
    values.iter().map(move |value| format!("--{flag}={value}"))
}

/// What an error of clap's says, without the flag, which the user has not written.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    if let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue)
        && !choices.is_empty()
    {
        return format!("expected one of {}", choices.join(", "));
    }
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The name most like `name`, if there is one that may have been meant.
pub(crate) fn nearest(name: &str, names: impl IntoIterator<Item = String>) -> Option<String> {
    let likeness = |other: &str| strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase());
    let named = names.into_iter().map(|other| (likeness(&other), other)).filter(|(likeness, _)| *likeness > 0.7);
    named.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

/// A question to put behind an error about an unknown name.
pub(crate) fn did_you_mean(nearest: Option<String>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
