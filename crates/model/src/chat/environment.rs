//! The template engine, set up as the library `transformers` sets up Jinja for chat templates.

use std::fmt;

use jiff::Zoned;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::{FUEL, RECURSION_LIMIT, json, python};

/// What a template gave as the reason when it refused a conversation.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    // Only delimiters can be invalid, and these are the usual ones.
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    // Else errors would carry copies of all variables.
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(python::format);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("sequence", python::is_sequence);
    environment
}

/// Turns the tags `{% generation %}` and `{% endgeneration %}`, by which training code finds the answers, into tags
/// that do nothing.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut cleaned = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((start, end)) = next_tag(rest) {
        let tag = &rest[start..end];
        cleaned.push_str(&rest[..start]);
        let name = tag.trim_start_matches(['{', '%', '-', '+']).trim_end_matches(['}', '%', '-', '+']).trim();
        match name {
            "generation" => cleaned.push_str(&tag.replacen(name, "if true", 1)),
            "endgeneration" => cleaned.push_str(&tag.replacen(name, "endif", 1)),
            _ => cleaned.push_str(tag),
        }
        rest = &rest[end..];
    }
    cleaned.push_str(rest);
    cleaned
}

/// Where the next tag begins and ends.
fn next_tag(source: &str) -> Option<(usize, usize)> {
    let start = source.find("{%")?;
    let end = start + source[start..].find("%}")? + 2;
    Some((start, end))
}

/// `raise_exception(message)`: the template's way of refusing a conversation.
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "the template called raise_exception").with_source(Refusal(message)))
}

/// `strftime_now(format)`: the date or time of now, in the machine's time zone.
fn strftime_now(format: &str) -> Result<String, Error> {
    strtime::format(format, &Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
}

/// `tojson(indent=…, ensure_ascii=…, separators=…, sort_keys=…)`, as Python's `json.dumps`.
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let indent = match indent {
        None => options.get("indent")?,
        positional => positional,
    };
    let style = json::Style {
        indent: json::indent(indent.as_ref())?,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match separators.as_deref() {
            None => None,
            Some([item, key]) => Some((item.clone(), key.clone())),
            Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings")),
        },
    };
    options.assert_all_used()?;
    json::write(value, &style).map(Value::from)
}
