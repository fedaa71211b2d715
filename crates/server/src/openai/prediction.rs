//! `prediction`: what the answer is likely to contain, for example the text that is to be edited.

use engine::ModelInfo;
use model::EncodeOptions;
use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::request;

/// The tokens of the text that a request predicts, if it does.
pub(super) fn read(fields: &Fields<'_>, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    let Some(prediction) = fields.nested("prediction")? else { return Ok(Vec::new()) };
    if prediction.required_text("type")? != "content" {
        return Err(prediction.error(Code::UnsupportedValue, "type", "must be \"content\""));
    }
    let mut text = String::new();
    match prediction.value("content") {
        Some(Value::String(content)) => text.push_str(content),
        Some(Value::Array(parts)) => {
            for (index, part) in parts.iter().enumerate() {
                let part = Fields::of(part, format!("prediction.content[{index}]"))?;
                text.push_str(part.required_text("text")?);
            }
        }
        None => return Err(prediction.missing("content")),
        Some(other) => return Err(fields::wrong_type("prediction.content", "a string or an array of parts", other)),
    }
    let options = EncodeOptions { add_special: false, parse_special: false };
    request::tokenize(model, "prediction.content", &text, options)
}
