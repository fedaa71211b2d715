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

/// Reads `prompt`.
pub(super) fn read(fields: &Fields<'_>, tokenizer: &Tokenizer) -> Result<Vec<Prompt>, ApiError> {
    read_from(fields, "prompt", tokenizer)
}

/// Reads field `name`: a string, an array of token ids, or an array of prompts in either form.
pub(super) fn read_from(fields: &Fields<'_>, name: &str, tokenizer: &Tokenizer) -> Result<Vec<Prompt>, ApiError> {
    // vLLM's name for the tokens that the checkpoint wants around a text, such as one that begins it.
    let add_special = fields.flag("add_special_tokens")?.unwrap_or(true);
    let one = |value: &Value, path: &str| match value {
        Value::String(text) => of_text(text, path, add_special, tokenizer),
        Value::Array(ids) => of_tokens(ids, path, tokenizer),
        other => Err(fields::wrong_type(path, "a string or an array of token ids", other)),
    };
    match fields.value(name).ok_or_else(|| fields.missing(name))? {
        Value::Array(prompts) if prompts.first().is_some_and(|first| !first.is_number()) => {
            if prompts.len() > PROMPTS_MAX {
                let problem = format!("has {} prompts, but at most {PROMPTS_MAX} are allowed", prompts.len());
                return Err(fields.error(Code::InvalidValue, name, problem));
            }
            prompts.iter().enumerate().map(|(index, prompt)| one(prompt, &format!("{name}[{index}]"))).collect()
        }
        prompt => Ok(vec![one(prompt, name)?]),
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
    let tokens = token_ids(items, path, tokenizer)?;
    let text = tokenizer.decode(&tokens);
    Ok(Prompt { tokens, text })
}

/// Reads the array of token ids at `path`.
pub(super) fn token_ids(items: &[Value], path: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
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
    items.iter().enumerate().map(read).collect()
}
