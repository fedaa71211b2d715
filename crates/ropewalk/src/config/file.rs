//! The configuration file: TOML, with a table for each command and a key for each of its options.

use std::path::Path;

use clap::{Arg, Command, Id};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::{ConfigError, Mistake};
use super::option::{self, Shape};

/// What a file says about one option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The words that name the command; none for options of the whole program.
    pub(crate) command: Vec<String>,
    pub(crate) id: Id,
    pub(crate) values: Vec<String>,
    pub(crate) line: usize,
}

/// Reads the file at `path`, which configures the program `root`.
///
/// # Errors
/// If the file cannot be read, or with all mistakes in it.
pub(crate) fn read(root: &Command, path: &Path) -> Result<Vec<Entry>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(root, &text).map_err(|mistakes| ConfigError::File { path: path.to_owned(), mistakes })
}

/// Reads what stands in a file.
///
/// # Errors
/// All mistakes in it, by line.
pub(crate) fn parse(root: &Command, text: &str) -> Result<Vec<Entry>, Vec<Mistake>> {
    let mut reader = Reader { text, entries: Vec::new(), mistakes: Vec::new() };
    match DeTable::parse(text) {
        Ok(table) => reader.table(root, &[], table.get_ref()),
        Err(error) => {
            let place = error.span().map_or(text.len(), |span| span.start);
            reader.mistake(place, error.message().to_owned());
        }
    }
    let Reader { mut entries, mut mistakes, .. } = reader;
    entries.sort_by_key(|entry| entry.line);
    mistakes.sort_by_key(|mistake| mistake.line);
    if mistakes.is_empty() { Ok(entries) } else { Err(mistakes) }
}

/// The values that `text` gives an option, written as in a file.
pub(super) fn values(arg: &Arg, text: &str) -> Result<Vec<String>, String> {
    let value = DeValue::parse(text).map_err(|error| error.message().to_owned())?;
    values_of(arg, value.get_ref())
}

struct Reader<'a> {
    text: &'a str,
    entries: Vec<Entry>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn mistake(&mut self, place: usize, reason: String) {
        let line = self.line(place);
        self.mistakes.push(Mistake { line, reason });
    }

    fn line(&self, place: usize) -> usize {
        1 + self.text.bytes().take(place).filter(|&byte| byte == b'\n').count()
    }

    /// Reads the table of a command.
    fn table(&mut self, command: &Command, words: &[String], table: &DeTable<'_>) {
        for (key, value) in table {
            let (name, place) = (key.get_ref().as_ref(), key.span().start);
            let inner = option::commands(command).find(|inner| inner.get_name() == name);
            match (option::find(command, name), inner, value.get_ref()) {
                (Some(arg), _, _) => self.option(command, words, arg, (key.span().start, value)),
                (None, Some(inner), DeValue::Table(table)) => {
                    self.table(inner, &[words, &[name.to_owned()]].concat(), table);
                }
                (None, Some(_), _) => {
                    self.mistake(place, format!("`{name}` is a command: expected the table [{name}]"))
                }
                (None, None, value) => self.mistake(place, unknown(command, words, name, value)),
            }
        }
    }

    fn option(
        &mut self,
        command: &Command,
        words: &[String],
        arg: &Arg,
        (place, value): (usize, &Spanned<DeValue<'_>>),
    ) {
        let read =
            values_of(arg, value.get_ref()).and_then(|values| option::check(command, arg, &values).map(|()| values));
        match read {
            Ok(values) => {
                let (command, id, line) = (words.to_vec(), arg.get_id().clone(), self.line(place));
                self.entries.push(Entry { command, id, values, line });
            }
            Err(reason) => {
                // A secret must not come into logs, however wrong it is.
                let written =
                    self.text.get(value.span()).filter(|text| !option::is_secret(arg) && !text.contains('\n'));
                let written = written.map(|text| format!(" = {text}")).unwrap_or_default();
                self.mistake(place, format!("{}{}{written}: {reason}", header(words), option::key(arg)));
            }
        }
    }
}

/// The header of a command's table, before a key.
fn header(words: &[String]) -> String {
    if words.is_empty() { String::new() } else { format!("[{}] ", words.join(".")) }
}

/// What to say of a name that is no option and no command.
fn unknown(command: &Command, words: &[String], name: &str, value: &DeValue<'_>) -> String {
    let commands = || option::commands(command).map(|command| command.get_name().to_owned());
    if matches!(value, DeValue::Table(_)) {
        let prefix = words.iter().map(|word| format!("{word}.")).collect::<String>();
        let nearest = option::nearest(name, commands()).map(|name| format!("[{prefix}{name}]"));
        return format!("[{prefix}{name}]: there is no such command{}", option::did_you_mean(nearest));
    }
    let options = || option::options(command);
    // Flags have further names, which the file does not know.
    let alias = options().find(|arg| arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name)));
    let nearest = alias.map(option::key).or_else(|| option::nearest(name, options().map(option::key)));
    if words.is_empty() && nearest.is_none() {
        let having = option::commands(command).find(|command| option::find(command, name).is_some());
        let place = having.map(|command| format!(", such as [{}]", command.get_name())).unwrap_or_default();
        return format!("`{name}` is no option of all commands: it has to stand in the table of a command{place}");
    }
    format!("{}`{name}`: there is no such option{}", header(words), option::did_you_mean(nearest))
}

/// The values that a value of TOML gives an option, as the command line would have them.
fn values_of(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let shape = Shape::of(arg);
    let expected = |found: &DeValue<'_>| {
        let or_array = if option::is_repeated(arg) { ", or an array of such" } else { "" };
        format!("expected {}{or_array}, found {}", shape.words(), describe(found))
    };
    match value {
        DeValue::Array(array) if option::is_repeated(arg) => {
            let value =
                |item: &Spanned<DeValue<'_>>| scalar(shape, item.get_ref()).ok_or_else(|| expected(item.get_ref()));
            array.iter().map(value).collect()
        }
        value => Ok(vec![scalar(shape, value).ok_or_else(|| expected(value))?]),
    }
}

fn scalar(shape: Shape, value: &DeValue<'_>) -> Option<String> {
    let (text, number) =
        (matches!(shape, Shape::Text | Shape::TextOrNumber), matches!(shape, Shape::Number | Shape::TextOrNumber));
    match value {
        DeValue::String(string) if text => Some(string.to_string()),
        DeValue::Integer(integer) if number => decimal(integer),
        DeValue::Float(float) if number => Some(float.as_str().to_owned()),
        DeValue::Boolean(switch) if shape == Shape::Boolean => Some(switch.to_string()),
        _ => None,
    }
}

/// An integer as parsers of flags read it.
fn decimal(integer: &DeInteger<'_>) -> Option<String> {
    i128::from_str_radix(integer.as_str(), integer.radix()).ok().map(|number| number.to_string())
}

fn describe(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
