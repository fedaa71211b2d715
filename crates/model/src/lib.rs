//! A checkpoint in, a runnable shard out.
#![forbid(unsafe_code)]

pub mod chat;
pub mod error;
pub mod gguf;
pub mod tokenizer;

pub use chat::{ChatInput, ChatTemplate};
pub use error::ModelError;
pub use gguf::{Gguf, Metadata, Tensor, TensorInfo};
pub use tokenizer::{EncodeOptions, Tokenizer, Utf8Stream};
