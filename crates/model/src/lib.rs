//! A checkpoint in, a runnable shard out.
#![forbid(unsafe_code)]

pub mod arch;
mod blocks;
pub mod chat;
pub mod error;
mod folder;
pub mod gguf;
mod placement;
mod ranking;
mod shard;
pub mod split;
pub mod tokenizer;
mod weights;

pub use arch::Blueprint;
pub use chat::{ChatInput, ChatTemplate, ToolForm};
pub use error::ModelError;
pub use gguf::{Gguf, Metadata, Tensor, TensorInfo};
pub use kernels::Stretch;
pub use placement::Placement;
pub use ranking::Ranking;
pub use shard::{Alone, Exchange, ExchangeError, LOGIT_ROWS, Shard, ShardOptions, Slices};
pub use tokenizer::{EncodeOptions, Tokenizer, Utf8Stream};
