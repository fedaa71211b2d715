//! The values that GGUF metadata can hold.

use std::fmt;

/// One metadata value, in the type that the file gave it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(Box<str>),
    Array(Array),
}

/// A metadata array. All elements of a GGUF array have one type; arrays can hold arrays.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Array {
    U8(Box<[u8]>),
    I8(Box<[i8]>),
    U16(Box<[u16]>),
    I16(Box<[i16]>),
    U32(Box<[u32]>),
    I32(Box<[i32]>),
    U64(Box<[u64]>),
    I64(Box<[i64]>),
    F32(Box<[f32]>),
    F64(Box<[f64]>),
    Bool(Box<[bool]>),
    Str(Strings),
    Array(Box<[Array]>),
}

/// Many strings in one allocation: a vocabulary has hundreds of thousands, most of them a few bytes long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`; it starts where the one before it ends.
    ends: Vec<usize>,
}

impl Strings {
    /// An empty list with room for `count` strings of `bytes` bytes together.
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Strings { text: String::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    /// Appends a string.
    pub(crate) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.ends.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

impl<'a> FromIterator<&'a str> for Strings {
    fn from_iter<I: IntoIterator<Item = &'a str>>(strings: I) -> Self {
        let mut list = Strings::default();
        strings.into_iter().for_each(|string| list.push(string));
        list
    }
}

impl Value {
    /// The name of the value's type as GGUF writes it, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::Str(_) => "string",
            Value::Array(array) => array.type_name(),
        }
    }
}

impl Array {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::F64(values) => values.len(),
            Array::Bool(values) => values.len(),
            Array::Str(values) => values.len(),
            Array::Array(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "array of u8",
            Array::I8(_) => "array of i8",
            Array::U16(_) => "array of u16",
            Array::I16(_) => "array of i16",
            Array::U32(_) => "array of u32",
            Array::I32(_) => "array of i32",
            Array::U64(_) => "array of u64",
            Array::I64(_) => "array of i64",
            Array::F32(_) => "array of f32",
            Array::F64(_) => "array of f64",
            Array::Bool(_) => "array of bool",
            Array::Str(_) => "array of strings",
            Array::Array(_) => "array of arrays",
        }
    }
}

/// The most elements of an array that are shown.
const SHOWN: usize = 6;
/// The most characters of a string that are shown.
const SHOWN_CHARACTERS: usize = 80;

impl fmt::Display for Value {
    /// A short form for people: long strings and arrays are cut, with their length given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(value) => value.fmt(f),
            Value::I8(value) => value.fmt(f),
            Value::U16(value) => value.fmt(f),
            Value::I16(value) => value.fmt(f),
            Value::U32(value) => value.fmt(f),
            Value::I32(value) => value.fmt(f),
            Value::U64(value) => value.fmt(f),
            Value::I64(value) => value.fmt(f),
            Value::F32(value) => value.fmt(f),
            Value::F64(value) => value.fmt(f),
            Value::Bool(value) => value.fmt(f),
            Value::Str(value) => f.write_str(&quoted(value)),
            Value::Array(value) => value.fmt(f),
        }
    }
}

impl fmt::Display for Array {
    /// The first few elements and the length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(values: impl ExactSizeIterator<Item = T>) -> String {
            let count = values.len();
            let mut shown: Vec<String> = values.take(SHOWN).map(|value| value.to_string()).collect();
            if count > SHOWN {
                shown.push(format!("… {count} in all"));
            }
            format!("[{}]", shown.join(", "))
        }
        f.write_str(&match self {
            Array::U8(values) => list(values.iter()),
            Array::I8(values) => list(values.iter()),
            Array::U16(values) => list(values.iter()),
            Array::I16(values) => list(values.iter()),
            Array::U32(values) => list(values.iter()),
            Array::I32(values) => list(values.iter()),
            Array::U64(values) => list(values.iter()),
            Array::I64(values) => list(values.iter()),
            Array::F32(values) => list(values.iter()),
            Array::F64(values) => list(values.iter()),
            Array::Bool(values) => list(values.iter()),
            Array::Str(values) => list(values.iter().map(quoted)),
            Array::Array(values) => list(values.iter()),
        })
    }
}

/// A string as it is shown to people: control characters escaped and cut to a bearable length.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{:?}… {} bytes in all", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}
