//! JSON files of a checkpoint: typed look-ups whose errors name the file and the key.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::ModelError;

/// The largest JSON file that is read; the largest tokenizers have 35 MB.
const BYTES_MAX: u64 = 256 << 20;

/// A JSON file, or an object in it.
#[derive(Debug, Clone)]
pub(super) struct Document {
    file: PathBuf,
    value: Value,
}

impl Document {
    /// Reads a file that must be there.
    pub(super) fn read(path: &Path) -> Result<Self, ModelError> {
        Self::find(path)?.ok_or_else(|| damaged(path, "it is missing".to_owned()))
    }

    /// Reads a file that may be missing.
    pub(super) fn find(path: &Path) -> Result<Option<Self>, ModelError> {
        let failed = |error: std::io::Error| damaged(path, format!("it cannot be read: {error}"));
        let length = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(failed)?.len(),
        };
        if length > BYTES_MAX {
            return Err(damaged(path, format!("it has {length} bytes; no such file has more than {BYTES_MAX}")));
        }
        let text = std::fs::read(path).map_err(failed)?;
        let value = serde_json::from_slice(&text).map_err(|error| damaged(path, format!("it is no JSON: {error}")))?;
        Ok(Some(Self { file: path.to_owned(), value }))
    }

    /// The value of a key, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// An object in it.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Object(_)) => Ok(Some(Self { file: self.file.clone(), value: value.clone() })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A whole number that is not negative.
    pub(super) fn size(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.get(key).map(|value| value.as_str().ok_or_else(|| self.wrong(key, value, "a string"))).transpose()
    }

    /// An error about the value of `key`; the problem is the end of a sentence that begins with the key.
    pub(super) fn bad(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::BadKey { file: self.file.clone(), key: key.to_owned(), problem: problem.into() }
    }

    /// An error that says that something is not supported.
    pub(super) fn unsupported(&self, what: impl Into<String>, advice: impl Into<String>) -> ModelError {
        ModelError::Unsupported { file: self.file.clone(), what: what.into(), advice: advice.into() }
    }

    fn typed<T>(&self, key: &str, wanted: &str, read: fn(&Value) -> Option<T>) -> Result<Option<T>, ModelError> {
        self.get(key).map(|value| read(value).ok_or_else(|| self.wrong(key, value, wanted))).transpose()
    }

    fn wrong(&self, key: &str, found: &Value, wanted: &str) -> ModelError {
        let found: String = found.to_string().chars().take(60).collect();
        self.bad(key, format!("is {found}; it must be {wanted}"))
    }
}

/// A file of a checkpoint that cannot be used.
pub(super) fn damaged(file: &Path, problem: String) -> ModelError {
    ModelError::Folder { file: file.to_owned(), problem }
}
