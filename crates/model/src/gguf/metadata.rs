//! The metadata of a model file: typed look-ups whose errors name the key.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::value::{Array, Strings, Value};
use crate::ModelError;

/// The key-value pairs of a GGUF file, in the order of the file.
///
/// Every type has two look-ups: `get_…` for a key that must be there and `find_…` for one that may be missing. A key
/// that is there with another type is an error in both.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

/// Declares the `get_…` twin of each `find_…` look-up.
macro_rules! required {
    ($($(#[$doc:meta])* $get:ident, $find:ident, $type:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// When the key is missing or holds another type.
        pub fn $get(&self, key: &str) -> Result<$type, ModelError> {
            self.$find(key)?.ok_or_else(|| self.missing(key))
        }
    )*};
}

impl Metadata {
    /// Whether the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// The value of `key` in whatever type the file gave it.
    pub fn find(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&index| &self.entries[index].1)
    }

    /// The pairs in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The file that the metadata was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    required! {
        /// A whole number that is not negative, stored in any integer type.
        get_u64, find_u64, u64;
        /// A 32-bit or 64-bit float.
        get_f32, find_f32, f32;
        /// A truth value.
        get_bool, find_bool, bool;
        /// A string.
        get_str, find_str, &str;
        /// An array of whole numbers that are not negative, stored in any integer type.
        get_array_u64, find_array_u64, Vec<u64>;
        /// An array of whole numbers, stored in any integer type.
        get_array_i64, find_array_i64, Vec<i64>;
        /// An array of 32-bit floats.
        get_array_f32, find_array_f32, &[f32];
        /// An array of truth values.
        get_array_bool, find_array_bool, &[bool];
        /// An array of strings.
        get_array_str, find_array_str, &Strings;
    }

    /// A whole number that is not negative, stored in any integer type, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type or a negative number.
    pub fn find_u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = integer(value).ok_or_else(|| self.wrong_type(key, value, "an integer"))?;
        u64::try_from(number).map(Some).map_err(|_| self.bad(key, format!("is {number}; it must not be negative")))
    }

    /// A 32-bit or 64-bit float, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn find_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::F32(value)) => Ok(Some(*value)),
            Some(Value::F64(value)) => Ok(Some(*value as f32)),
            Some(other) => Err(self.wrong_type(key, other, "a float")),
        }
    }

    /// A truth value, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong_type(key, other, "a bool")),
        }
    }

    /// A string, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn find_str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Str(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(key, other, "a string")),
        }
    }

    /// An array of whole numbers that are not negative, stored in any integer type, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type or one of the numbers is negative.
    pub fn find_array_u64(&self, key: &str) -> Result<Option<Vec<u64>>, ModelError> {
        let Some(numbers) = self.integers(key)? else { return Ok(None) };
        let unsigned = |number| {
            u64::try_from(number).map_err(|_| self.bad(key, format!("holds {number}; no element may be negative")))
        };
        numbers.into_iter().map(unsigned).collect::<Result<_, _>>().map(Some)
    }

    /// An array of whole numbers, stored in any integer type, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type or one of the numbers is too large.
    pub fn find_array_i64(&self, key: &str) -> Result<Option<Vec<i64>>, ModelError> {
        let Some(numbers) = self.integers(key)? else { return Ok(None) };
        let signed =
            |number| i64::try_from(number).map_err(|_| self.bad(key, format!("holds {number}, which is too large")));
        numbers.into_iter().map(signed).collect::<Result<_, _>>().map(Some)
    }

    /// An array of 32-bit floats, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn find_array_f32(&self, key: &str) -> Result<Option<&[f32]>, ModelError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(values))) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(key, other, "an array of f32")),
        }
    }

    /// An array of truth values, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn find_array_bool(&self, key: &str) -> Result<Option<&[bool]>, ModelError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(values))) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(key, other, "an array of bool")),
        }
    }

    /// An array of strings, if the key is there.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn find_array_str(&self, key: &str) -> Result<Option<&Strings>, ModelError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Array(Array::Str(values))) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(key, other, "an array of strings")),
        }
    }

    /// An error that says what is wrong with the value of `key`. The problem is the end of a sentence that begins
    /// with the key: "is 7; it must be even".
    pub fn bad(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::BadKey { file: self.file.clone(), key: key.to_owned(), problem: problem.into() }
    }

    /// Starts empty, for a file.
    pub(crate) fn new(file: PathBuf) -> Self {
        Metadata { file, ..Metadata::default() }
    }

    /// Adds a pair; returns whether the key was new. A key that was there keeps its value.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { file: self.file.clone(), key: key.to_owned() }
    }

    fn wrong_type(&self, key: &str, found: &Value, wanted: &str) -> ModelError {
        self.bad(key, format!("holds {} where {wanted} is expected; convert the model again", found.type_name()))
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<i128>>, ModelError> {
        fn widen<T: Copy + Into<i128>>(values: &[T]) -> Vec<i128> {
            values.iter().map(|&value| value.into()).collect()
        }
        let Some(value) = self.find(key) else { return Ok(None) };
        Ok(Some(match value {
            Value::Array(Array::U8(values)) => widen(values),
            Value::Array(Array::I8(values)) => widen(values),
            Value::Array(Array::U16(values)) => widen(values),
            Value::Array(Array::I16(values)) => widen(values),
            Value::Array(Array::U32(values)) => widen(values),
            Value::Array(Array::I32(values)) => widen(values),
            Value::Array(Array::U64(values)) => widen(values),
            Value::Array(Array::I64(values)) => widen(values),
            other => return Err(self.wrong_type(key, other, "an array of integers")),
        }))
    }
}

fn integer(value: &Value) -> Option<i128> {
    Some(match *value {
        Value::U8(value) => value.into(),
        Value::I8(value) => value.into(),
        Value::U16(value) => value.into(),
        Value::I16(value) => value.into(),
        Value::U32(value) => value.into(),
        Value::I32(value) => value.into(),
        Value::U64(value) => value.into(),
        Value::I64(value) => value.into(),
        _ => return None,
    })
}
