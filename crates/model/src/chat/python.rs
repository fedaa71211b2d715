//! What templates expect of Python's values beyond what the template engine has.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Methods of Python's strings, lists and dicts.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name) {
        (Some(text), "rsplit") => rsplit(text, args),
        (Some(text), "removeprefix") => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        (Some(text), "removesuffix") => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        (Some(text), "partition") => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, found, after) = match text.split_once(separator) {
                Some((before, after)) => (before, separator, after),
                None => (text, "", ""),
            };
            Ok([before, found, after].into_iter().map(Value::from).collect())
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// `str.rsplit`: cuts from the right.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX).saturating_add(1);
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "rsplit needs a separator that is not empty")),
        Some(separator) => parts.extend(text.rsplitn(limit, separator)),
        None => {
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let cut = rest.rfind(char::is_whitespace).filter(|_| parts.len() + 1 < limit);
                let start = cut.map_or(0, |cut| cut + rest[cut..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[start..]);
                rest = cut.map_or("", |cut| rest[..cut].trim_end());
            }
        }
    }
    Ok(parts.into_iter().rev().map(Value::from).collect())
}

/// The test `iterable`: unlike other things that can be gone through, None is not.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`, which strings and dicts pass as well.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

/// Prints a value into the text: lists and dicts as Python's `repr`.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Map | ValueKind::Seq => {
            let mut text = String::new();
            represent(value, 0, &mut text)?;
            out.write_str(&text).map_err(Error::from)
        }
        ValueKind::Number if !value.is_integer() => {
            out.write_str(&float(f64::try_from(value.clone())?)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// How deep values may be nested.
const MAX_DEPTH: usize = 128;

fn represent(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let problem = format!("values nested more than {MAX_DEPTH} deep cannot be printed");
        return Err(Error::new(ErrorKind::BadSerialization, problem));
    }
    match value.kind() {
        ValueKind::String => represent_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                out.push_str(if count == 0 { "" } else { ", " });
                represent(&item?, depth + 1, out)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                out.push_str(if index == 0 { "" } else { ", " });
                represent(&key, depth + 1, out)?;
                out.push_str(": ");
                represent(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A string in quotes: single ones unless it has these and no double ones.
fn represent_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', character]),
            _ if character < ' ' || ('\u{7f}'..='\u{a0}').contains(&character) || character == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
}

/// A float as Python prints it: the shortest digits that tell it from its neighbours, with an exponent where it is
/// very large or very small.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_python_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (123456.789, "123456.789"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
    }
}
