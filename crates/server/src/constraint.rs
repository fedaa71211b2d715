//! What an answer must look like, in the words of the various APIs.

use engine::{Constraint, ConstraintError};
use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};

/// vLLM's names for constraints outside of `structured_outputs`, and what they are called inside.
const GUIDED: [(&str, &str); 4] =
    [("guided_json", "json"), ("guided_regex", "regex"), ("guided_choice", "choice"), ("guided_grammar", "grammar")];

/// Reads the constraint that a request of OpenAI's chat or completions asks for: `response_format`, or under the names that
/// vLLM and llama.cpp have for it. At most one may be given.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let mut found: Option<(String, Constraint)> = None;
    let mut take = |name: &str, constraint: Option<Constraint>| match (&found, constraint) {
        (_, None) => Ok(()),
        (None, Some(constraint)) => {
            found = Some((name.to_owned(), constraint));
            Ok(())
        }
        (Some((first, _)), Some(_)) => {
            let problem = format!("cannot be combined with {first}: an answer has one form");
            Err(fields.error(Code::InvalidValue, name, problem))
        }
    };
    take("response_format", response_format(fields)?)?;
    if let Some(outputs) = fields.nested("structured_outputs")? {
        for kind in ["json", "regex", "choice", "grammar", "json_object", "structural_tag"] {
            take(&format!("structured_outputs.{kind}"), guided(&outputs, kind, kind)?)?;
        }
    }
    for (name, kind) in GUIDED {
        take(name, guided(fields, name, kind)?)?;
    }
    // llama.cpp's names.
    take("json_schema", guided(fields, "json_schema", "json")?)?;
    take("grammar", guided(fields, "grammar", "grammar")?)?;
    Ok(found.map(|(_, constraint)| constraint))
}

/// `response_format`, in which the schema stands in an object of its own.
fn response_format(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let Some(format) = fields.nested("response_format")? else { return Ok(None) };
    match format.required_text("type")? {
        "text" => Ok(None),
        "json_schema" => {
            let described = format.nested("json_schema")?.ok_or_else(|| format.missing("json_schema"))?;
            described.required_text("name")?;
            schema(&described).map(Some)
        }
        // llama.cpp takes a schema here.
        "json_object" => match format.value("schema") {
            Some(schema) => of_schema(&format, "schema", schema, true).map(Some),
            None => checked(&format, "type", Constraint::json_object()).map(Some),
        },
        other => {
            let problem = format!("is {other:?}, but must be text, json_object or json_schema");
            Err(format.error(Code::UnsupportedValue, "type", problem))
        }
    }
}

/// A format whose schema stands beside its type: `text.format` of OpenAI's responses.
pub(crate) fn flat_format(format: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    match format.required_text("type")? {
        "text" => Ok(None),
        "json_object" => checked(format, "type", Constraint::json_object()).map(Some),
        "json_schema" => {
            format.required_text("name")?;
            schema(format).map(Some)
        }
        other => {
            let problem = format!("is {other:?}, but must be text, json_object or json_schema");
            Err(format.error(Code::UnsupportedValue, "type", problem))
        }
    }
}

/// `output_config.format` of Anthropic's messages.
pub(crate) fn output_format(format: &Fields<'_>) -> Result<Constraint, ApiError> {
    match format.required_text("type")? {
        "json_schema" => {
            let schema = format.value("schema").ok_or_else(|| format.missing("schema"))?;
            of_schema(format, "schema", schema, true)
        }
        other => {
            let problem = format!("is {other:?}, but must be json_schema");
            Err(format.error(Code::UnsupportedValue, "type", problem))
        }
    }
}

/// `format` of Ollama's: `json`, or a schema.
pub(crate) fn ollama_format(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    match fields.value("format") {
        None => Ok(None),
        Some(Value::String(format)) if format.is_empty() => Ok(None),
        Some(Value::String(format)) if format == "json" => {
            checked(fields, "format", Constraint::json_object()).map(Some)
        }
        Some(schema @ Value::Object(_)) => of_schema(fields, "format", schema, true).map(Some),
        Some(Value::String(other)) => {
            let problem = format!("is {other:?}, but must be \"json\" or a schema");
            Err(fields.error(Code::InvalidValue, "format", problem))
        }
        Some(other) => Err(fields::wrong_type("format", "\"json\" or a schema", other)),
    }
}

/// `schema` and `strict` of an object.
fn schema(fields: &Fields<'_>) -> Result<Constraint, ApiError> {
    let strict = fields.flag("strict")?.unwrap_or(false);
    match fields.value("schema") {
        Some(schema) => of_schema(fields, "schema", schema, strict),
        None if strict => Err(fields.missing("schema")),
        None => checked(fields, "schema", Constraint::json_object()),
    }
}

fn of_schema(fields: &Fields<'_>, name: &str, schema: &Value, strict: bool) -> Result<Constraint, ApiError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(fields::wrong_type(&fields.path(name), "a schema", schema));
    }
    checked(fields, name, Constraint::json_schema(schema, strict))
}

/// One of vLLM's constraints, which stands in field `name`.
fn guided(fields: &Fields<'_>, name: &str, kind: &str) -> Result<Option<Constraint>, ApiError> {
    let Some(value) = fields.value(name) else { return Ok(None) };
    let constraint = match kind {
        "json" => {
            // Clients send it as text, too.
            let parsed = value.as_str().map(serde_json::from_str::<Value>).transpose().map_err(|error| {
                fields.error(Code::InvalidValue, name, format!("is a text that is no JSON: {error}"))
            })?;
            return of_schema(fields, name, parsed.as_ref().unwrap_or(value), true).map(Some);
        }
        "regex" => Constraint::regex(fields.required_text(name)?),
        "grammar" => Constraint::grammar(fields.required_text(name)?),
        "choice" => Constraint::choice(&texts(fields, name)?),
        "json_object" => match fields.flag(name)? {
            Some(true) => Constraint::json_object(),
            _ => return Ok(None),
        },
        _ => return Err(fields.error(Code::UnsupportedParameter, name, "is not supported by this server")),
    };
    checked(fields, name, constraint).map(Some)
}

fn texts(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let path = fields.path(name);
    let text = |(index, item): (usize, &Value)| match item.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(fields::wrong_type(&format!("{path}[{index}]"), "a string", item)),
    };
    fields.array(name)?.unwrap_or_default().iter().enumerate().map(text).collect()
}

/// The constraint, or the error of the field `name` that it came from.
pub(crate) fn checked(
    fields: &Fields<'_>,
    name: &str,
    constraint: Result<Constraint, ConstraintError>,
) -> Result<Constraint, ApiError> {
    constraint.map_err(|error| {
        let code = match error {
            ConstraintError::Keyword { .. } => Code::UnsupportedValue,
            _ => Code::InvalidValue,
        };
        fields.error(code, name, error)
    })
}
