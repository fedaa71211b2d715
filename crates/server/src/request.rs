//! What the dialects share on the way from a client's request to the engine's.

use engine::ModelInfo;
use model::{ChatInput, EncodeOptions};
use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};

/// Most stop strings in a request. OpenAI allows 4; evaluation harnesses and agents send more.
const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string in bytes: every token's text is compared with all of them.
const STOP_BYTES_MAX: usize = 256;

/// The model that a request names, if it does. Whether it has to is the dialect's to say.
pub(crate) fn model_name(body: &Value) -> Option<&str> {
    // Ollama's clients of old call the field `name`.
    body.get("model").or_else(|| body.get("name")).and_then(Value::as_str)
}

/// The stop strings in field `name`: a string or an array of strings, none empty.
pub(crate) fn stop_strings(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let path = fields.path(name);
    match fields.value(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() > STOP_STRINGS_MAX => {
            let problem = format!("has {} strings, but at most {STOP_STRINGS_MAX} are allowed", items.len());
            Err(fields.error(Code::InvalidValue, name, problem))
        }
        Some(Value::Array(items)) => {
            items.iter().enumerate().map(|(index, item)| stop_string(item, &format!("{path}[{index}]"))).collect()
        }
        Some(value @ Value::String(_)) => Ok(vec![stop_string(value, &path)?]),
        Some(value) => Err(fields::wrong_type(&path, "a string or an array of strings", value)),
    }
}

fn stop_string(value: &Value, path: &str) -> Result<String, ApiError> {
    match value.as_str() {
        None => Err(fields::wrong_type(path, "a string", value)),
        Some("") => Err(ApiError::of_field(Code::InvalidValue, path, format!("{path} must not be empty"))),
        Some(text) if text.len() > STOP_BYTES_MAX => {
            let message = format!("{path} has {} bytes, but at most {STOP_BYTES_MAX} are allowed", text.len());
            Err(ApiError::of_field(Code::InvalidValue, path, message))
        }
        Some(text) => Ok(text.to_owned()),
    }
}

/// Renders a conversation, which came from `field`, with the model's template and tokenizes it.
pub(crate) fn conversation(model: &ModelInfo, field: &str, input: &ChatInput) -> Result<Vec<u32>, ApiError> {
    begun_conversation(model, field, input, "")
}

/// The same for an answer that goes on from the text `begun`.
pub(crate) fn begun_conversation(
    model: &ModelInfo,
    field: &str,
    input: &ChatInput,
    begun: &str,
) -> Result<Vec<u32>, ApiError> {
    let Some(template) = &model.chat_template else {
        let message = format!("the model {:?} has no chat template: use /v1/completions", model.id);
        return Err(ApiError::new(Code::UnsupportedParameter, message));
    };
    // Templates refuse conversations they cannot write, for example two messages of the user in a row.
    let mut text = template.render(input).map_err(|error| {
        let message = format!("{field} were refused by the model's chat template: {error}");
        ApiError::of_field(Code::InvalidValue, field, message)
    })?;
    text.push_str(begun);
    // The template writes all special tokens itself, the one that begins a text included.
    let options = EncodeOptions { add_special: false, parse_special: true };
    tokenize(model, field, &text, options)
}

/// The tokens of a text, which came from `field`.
pub(crate) fn tokenize(
    model: &ModelInfo,
    field: &str,
    text: &str,
    options: EncodeOptions,
) -> Result<Vec<u32>, ApiError> {
    model
        .tokenizer
        .encode(text, options)
        .map_err(|error| ApiError::of_field(Code::InvalidValue, field, format!("{field} cannot be tokenized: {error}")))
}

/// Refuses fields that would change the answer in a way that this server does not know. Their values that ask for
/// nothing (`null`, `false`, an empty string or array) pass, since clients send them by default.
pub(crate) fn refuse_unsupported(fields: &Fields<'_>, names: &[&str]) -> Result<(), ApiError> {
    let asks = |name: &&&str| match fields.value(name) {
        None | Some(Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    match names.iter().find(asks) {
        None => Ok(()),
        Some(name) => Err(fields.error(Code::UnsupportedParameter, name, "is not supported by this server")),
    }
}
