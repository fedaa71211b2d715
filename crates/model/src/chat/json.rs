//! JSON as Python's `json.dumps` writes it: templates were made, and models trained, with its spaces and numbers.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python::float;

/// How the JSON is laid out.
#[derive(Debug, Clone, Default)]
pub(super) struct Style {
    /// What a level is indented by; none for all on one line.
    pub(super) indent: Option<String>,
    /// What stands between items, and between a key and its value.
    pub(super) separators: Option<(String, String)>,
    /// Whether characters beyond ASCII are written as `\u` and digits.
    pub(super) ensure_ascii: bool,
    /// Whether objects are written in the order of their keys.
    pub(super) sort_keys: bool,
}

/// How deep values may be nested.
const MAX_DEPTH: usize = 128;

/// Python's `indent` argument: nothing, a number of spaces, or the text of a level.
pub(super) fn indent(value: Option<&Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(|value| !value.is_none() && !value.is_undefined()) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    match value.as_usize() {
        Some(spaces @ 0..=64) => Ok(Some(" ".repeat(spaces))),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "indent must be a string or a number from 0 to 64")),
    }
}

/// Writes a value.
pub(super) fn write(value: &Value, style: &Style) -> Result<String, Error> {
    let (item, key) = match &style.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = Writer { out: String::new(), style, item, key };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    style: &'a Style,
    item: &'a str,
    key: &'a str,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            let problem = format!("values nested more than {MAX_DEPTH} deep cannot be written as JSON");
            return Err(Error::new(ErrorKind::BadSerialization, problem));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked();
                self.container('[', ']', depth, items, |writer, item| writer.value(&item?, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                if self.style.sort_keys {
                    keys.sort();
                }
                self.container('{', '}', depth, keys.into_iter(), |writer, key| {
                    writer.map_key(&key)?;
                    writer.out.push_str(writer.key);
                    writer.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} cannot be written as JSON")));
            }
        }
        Ok(())
    }

    /// Writes brackets with the items in between, each on a line of its own if there is an indent.
    fn container<T>(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                self.out.push_str(self.item);
            }
            is_empty = false;
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !is_empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    /// Keys are strings; Python turns some other values into strings.
    fn map_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            kind => {
                let problem = format!("{kind} cannot be the key of a JSON object");
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if character < ' ' || self.style.ensure_ascii && character > '~' && character != '\u{7f}' => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}
