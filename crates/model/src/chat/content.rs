//! The content of messages: a string, or a list of parts such as `{"type": "text", "text": "…"}`. Some templates
//! understand only one of the two.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::ModelError;

/// What a template takes as the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentForm {
    /// Both, as far as can be told.
    Either,
    /// Strings alone.
    Text,
    /// Lists of parts alone.
    Parts,
}

/// A word that no template contains.
const NEEDLE: &str = "xqzNEEDLEzqx";

/// Finds out what a template takes by rendering a message in both forms. `render` gives nothing where it fails.
pub(super) fn probe(render: impl Fn(Value) -> Option<String>) -> ContentForm {
    let takes = |content: Value| {
        let text = render(json!([{ "role": "user", "content": content }]))?;
        // A list that is printed as such has the names of its fields around the text.
        let is_printed = text.contains("'text'") || text.contains("\"text\"");
        (text.contains(NEEDLE) && !is_printed).then_some(())
    };
    let takes_text = takes(json!(NEEDLE)).is_some();
    let takes_parts = takes(json!([{ "type": "text", "text": NEEDLE }])).is_some();
    match (takes_text, takes_parts) {
        (true, false) => ContentForm::Text,
        (false, true) => ContentForm::Parts,
        // A template that shows no user message in either form gives no hint, so nothing is changed.
        _ => ContentForm::Either,
    }
}

impl ContentForm {
    /// The messages in the form that the template takes.
    pub(super) fn adapt(self, messages: &Value) -> Result<Cow<'_, Value>, ModelError> {
        let Some(list) = messages.as_array().filter(|list| list.iter().all(Value::is_object)) else {
            return Err(refused("messages must be an array of objects".to_owned()));
        };
        let needs_change = |message: &Value| match self {
            ContentForm::Either => false,
            ContentForm::Text => message["content"].is_array(),
            ContentForm::Parts => message["content"].is_string(),
        };
        if !list.iter().any(needs_change) {
            return Ok(Cow::Borrowed(messages));
        }
        let mut list = list.clone();
        for (index, message) in list.iter_mut().enumerate() {
            if needs_change(message) {
                let content = &mut message["content"];
                *content = match content.take() {
                    Value::Array(parts) => joined_text(index, &parts)?.into(),
                    text => json!([{ "type": "text", "text": text }]),
                };
            }
        }
        Ok(Cow::Owned(list.into()))
    }
}

/// The texts of all parts, with line ends between them.
fn joined_text(message: usize, parts: &[Value]) -> Result<String, ModelError> {
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str(), part.as_str()) {
        (Some("text"), Some(text), _) | (None, Some(text), _) | (_, _, Some(text)) => Ok(text.to_owned()),
        (kind, ..) => {
            let kind = kind.unwrap_or("unknown");
            Err(refused(format!("it takes text alone, but message {message} has a part of the type `{kind}`")))
        }
    };
    let texts: Vec<String> = parts.iter().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

fn refused(message: String) -> ModelError {
    ModelError::TemplateRefused { message }
}
