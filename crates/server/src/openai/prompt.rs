//! Prompts of the completions API: text or token ids, one or several.

use model::{EncodeOptions, Tokenizer};
use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};

/// Most prompts in one request.
const PROMPTS_MAX: usize = 2048;

/// One prompt.
#[derive(Debug, PartialEq)]
pub(super) struct Prompt {
    /// Its token ids.
    pub(super) tokens: Vec<u32>,
    /// Its text: the client's own, or what the tokens stand for.
    pub(super) text: String,
}

/// Reads `prompt`: a string, an array of strings, an array of token ids, or an array of such arrays.
pub(super) fn read(fields: &Fields<'_>, tokenizer: &Tokenizer) -> Result<Vec<Prompt>, ApiError> {
    // vLLM's name for the tokens that the checkpoint wants around a text, such as one that begins it.
    let add_special = fields.flag("add_special_tokens")?.unwrap_or(true);
    let value = fields.value("prompt").ok_or_else(|| fields.missing("prompt"))?;
    let from_text = |text: &str, path: &str| of_text(text, path, add_special, tokenizer);
    match value {
        Value::String(text) => Ok(vec![from_text(text, "prompt")?]),
        Value::Array(items) if items.len() > PROMPTS_MAX && !items[0].is_number() => {
            let problem = format!("has {} prompts, but at most {PROMPTS_MAX} are allowed", items.len());
            Err(fields.error(Code::InvalidValue, "prompt", problem))
        }
        Value::Array(items) => match items.first() {
            None => Err(fields.error(Code::InvalidValue, "prompt", "must not be empty")),
            Some(Value::Number(_)) => Ok(vec![of_tokens(items, "prompt", tokenizer)?]),
            Some(Value::String(_) | Value::Array(_)) => {
                let read = |(index, item): (usize, &Value)| {
                    let path = format!("prompt[{index}]");
                    match (item, &items[0]) {
                        (Value::String(text), Value::String(_)) => from_text(text, &path),
                        (Value::Array(ids), Value::Array(_)) => of_tokens(ids, &path, tokenizer),
                        (item, Value::String(_)) => Err(fields::wrong_type(&path, "a string like the first", item)),
                        (item, _) => Err(fields::wrong_type(&path, "an array of token ids like the first", item)),
                    }
                };
                items.iter().enumerate().map(read).collect()
            }
            Some(other) => Err(fields::wrong_type("prompt[0]", "a string, a token id or an array of token ids", other)),
        },
        other => Err(fields::wrong_type("prompt", "a string or an array", other)),
    }
}

fn of_text(text: &str, path: &str, add_special: bool, tokenizer: &Tokenizer) -> Result<Prompt, ApiError> {
    let options = EncodeOptions { add_special, parse_special: true };
    match tokenizer.encode(text, options) {
        Ok(tokens) if tokens.is_empty() => {
            Err(ApiError::of_field(Code::InvalidValue, path, format!("{path} must not be empty")))
        }
        Ok(tokens) => Ok(Prompt { tokens, text: text.to_owned() }),
        Err(error) => Err(ApiError::of_field(Code::InvalidValue, path, format!("{path} cannot be tokenized: {error}"))),
    }
}

fn of_tokens(items: &[Value], path: &str, tokenizer: &Tokenizer) -> Result<Prompt, ApiError> {
    if items.is_empty() {
        return Err(ApiError::of_field(Code::InvalidValue, path, format!("{path} must not be empty")));
    }
    let vocabulary = tokenizer.vocabulary();
    let read = |(index, item): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        if !item.is_number() {
            return Err(fields::wrong_type(&path, "a token id", item));
        }
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocabulary);
        id.ok_or_else(|| {
            let message = format!("{path} is {item}, which is no token id below {vocabulary}");
            ApiError::of_field(Code::InvalidValue, path, message)
        })
    };
    let tokens = items.iter().enumerate().map(read).collect::<Result<Vec<u32>, ApiError>>()?;
    let text = tokenizer.decode(&tokens);
    Ok(Prompt { tokens, text })
}
