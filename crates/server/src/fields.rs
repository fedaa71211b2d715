//! Typed reading of JSON objects from clients, with errors that name the field.
//!
//! Requests are read field by field and not through derived deserializers, because each bad value must be answered
//! with the field's path and what would have been right, and because APIs treat `null` as absent and unknown fields as
//! nothing.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ApiError, Code};

/// A JSON object and where in the request it stands.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// Reads `value`, which stands at `path` (empty for the request itself), as an object.
    pub(crate) fn of(value: &'a Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(object) => Ok(Self { object, path }),
            _ if path.is_empty() => {
                Err(ApiError::new(Code::InvalidType, format!("the request must be an object, but is {}", kind(value))))
            }
            _ => Err(wrong_type(&path, "an object", value)),
        }
    }

    /// The whole object.
    pub(crate) fn object(&self) -> &'a Map<String, Value> {
        self.object
    }

    /// The path of field `name`, as errors give it.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The value of `name`; `None` where it is absent or `null`.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// A number within `range`.
    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        number(value, &self.path(name), range).map(Some)
    }

    /// A whole number within `range`. `5.0` is one, as JSON knows a single kind of number.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let path = self.path(name);
        let integer = whole(value).ok_or_else(|| not_whole(&path, value))?;
        if range.contains(&integer) { Ok(Some(integer)) } else { Err(out_of_range(&path, &range, &integer)) }
    }

    /// The same for counts.
    pub(crate) fn count(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<usize>, ApiError> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        Ok(self.integer(name, range)?.and_then(|count| usize::try_from(count).ok()))
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| wrong_type(&self.path(name), "true or false", value));
        self.value(name).map(read).transpose()
    }

    /// A string.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let read = |value: &'a Value| value.as_str().ok_or_else(|| wrong_type(&self.path(name), "a string", value));
        self.value(name).map(read).transpose()
    }

    /// A string that must be there.
    pub(crate) fn required_text(&self, name: &str) -> Result<&'a str, ApiError> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    /// An array.
    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        let read = |value: &'a Value| match value {
            Value::Array(items) => Ok(items.as_slice()),
            _ => Err(wrong_type(&self.path(name), "an array", value)),
        };
        self.value(name).map(read).transpose()
    }

    /// An object.
    pub(crate) fn nested(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.value(name).map(|value| Fields::of(value, self.path(name))).transpose()
    }

    /// The error for a required field that is absent.
    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let path = self.path(name);
        let message = format!("{path} is required");
        ApiError::of_field(Code::MissingParameter, path, message)
    }

    /// An error in field `name`; `problem` completes the sentence that begins with the field's path.
    pub(crate) fn error(&self, code: Code, name: &str, problem: impl Display) -> ApiError {
        let path = self.path(name);
        let message = format!("{path} {problem}");
        ApiError::of_field(code, path, message)
    }
}

/// Reads a number within `range`.
pub(crate) fn number(value: &Value, path: &str, range: RangeInclusive<f32>) -> Result<f32, ApiError> {
    let number = value.as_f64().ok_or_else(|| wrong_type(path, "a number", value))?;
    // The comparison is made on the client's own number: a conversion first could round it into the range.
    let inside = (f64::from(*range.start())..=f64::from(*range.end())).contains(&number);
    if inside { Ok(number as f32) } else { Err(out_of_range(path, &range, &number)) }
}

/// A whole number, also where it is written with a fraction of zero.
fn whole(value: &Value) -> Option<i64> {
    // Beyond 2^53 a double no longer tells whole numbers apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let rounded = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT);
    value.as_i64().or_else(|| rounded().map(|number| number as i64))
}

/// The error for a value of the wrong JSON type.
pub(crate) fn wrong_type(path: &str, expected: &str, value: &Value) -> ApiError {
    let message = format!("{path} must be {expected}, but is {}", kind(value));
    ApiError::of_field(Code::InvalidType, path, message)
}

/// The same where a whole number was expected. That it is a number does not say what is wrong with 1.5.
fn not_whole(path: &str, value: &Value) -> ApiError {
    if !value.is_number() {
        return wrong_type(path, "a whole number", value);
    }
    ApiError::of_field(Code::InvalidType, path, format!("{path} must be a whole number, but is {value}"))
}

fn out_of_range<T: Display>(path: &str, range: &RangeInclusive<T>, value: &impl Display) -> ApiError {
    let message = format!("{path} must be between {} and {}, but is {value}", range.start(), range.end());
    ApiError::of_field(Code::InvalidValue, path, message)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_absent_and_five_point_zero_is_five() {
        let body = json!({"n": null, "k": 5.0, "half": 0.5, "huge": 1e300});
        let fields = Fields::of(&body, "").unwrap();
        assert_eq!(fields.count("n", 1..=9).unwrap(), None);
        assert_eq!(fields.count("k", 1..=9).unwrap(), Some(5));
        assert!(fields.count("half", 0..=9).is_err());
        assert!(fields.count("huge", 0..=9).is_err());
        assert!(fields.number("huge", 0.0..=9.0).is_err());
    }

    #[test]
    fn errors_name_the_whole_path() {
        let body = json!({"outer": {"inner": "x"}});
        let fields = Fields::of(&body, "").unwrap();
        let error = fields.nested("outer").unwrap().unwrap().flag("inner").unwrap_err();
        let expected = "outer.inner must be true or false, but is a string";
        assert_eq!(error, ApiError::of_field(Code::InvalidType, "outer.inner", expected));
    }
}
