//! Text to tokens and back, as the model's file prescribes.

mod utf8;

pub use utf8::Utf8Stream;

use crate::{Gguf, ModelError};

/// A model's vocabulary and the rules by which text becomes tokens.
#[derive(Debug, Clone)]
pub struct Tokenizer {}

/// What to do beside splitting the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Put the tokens around the text that the model expects there, such as the one that begins a text.
    pub add_special: bool,
    /// Read the texts of control tokens (`<|im_start|>`) as these tokens. Off for text that comes from outside: then
    /// they are characters like any others.
    pub parse_special: bool,
}

#[allow(unused_variables, missing_docs)]
impl Tokenizer {
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, ModelError> {
        unimplemented!()
    }
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, ModelError> {
        unimplemented!()
    }
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        unimplemented!()
    }
    pub fn token_text(&self, id: u32) -> &str {
        unimplemented!()
    }
    pub fn is_control(&self, id: u32) -> bool {
        unimplemented!()
    }
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        unimplemented!()
    }
    pub fn bos(&self) -> Option<u32> {
        unimplemented!()
    }
    pub fn eos(&self) -> Option<u32> {
        unimplemented!()
    }
    pub fn vocabulary(&self) -> usize {
        unimplemented!()
    }
    pub fn decode(&self, tokens: &[u32]) -> String {
        unimplemented!()
    }
}
