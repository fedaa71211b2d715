//! Chat templates: a conversation to the text that the model was trained on.

use serde_json::{Map, Value};

use crate::{Gguf, ModelError, Tokenizer};

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {}

/// A conversation and what the template should know about it.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The messages, an array of objects with `role` and `content`.
    pub messages: Value,
    /// The tools that the model may call, an array in OpenAI's form.
    pub tools: Option<Value>,
    /// Whether to end with the beginning of the model's answer.
    pub add_generation_prompt: bool,
    /// More variables for the template, such as `enable_thinking`.
    pub extra: Map<String, Value>,
}

#[allow(unused_variables, missing_docs)]
impl ChatTemplate {
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, ModelError> {
        unimplemented!()
    }
    pub fn render(&self, input: &ChatInput) -> Result<String, ModelError> {
        unimplemented!()
    }
}
