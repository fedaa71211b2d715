//! Quantized tensor formats and the operations on them, on the CPU.
//!
//! A [`Matrix`] holds weights in the block layout in which GGUF files store them, until [`pack`] moves them to memory in the
//! order in which they are used; [`multiply`] takes [`Activations`] through one or more of them. What happens to values on
//! their way into a product is done while they are loaded ([`Rows`]). The other operations of a transformer layer follow:
//! [`rms_norm_in_place`], [`RopeAngles`], [`KvCache`] and [`attend`]. All of them run on a [`Pool`] of threads.
//!
//! **Invariant:** the result for one row of weights and one token depends on nothing else. Neither the number of tokens,
//! rows or threads of a call, nor the instruction set changes a bit of it. That is why any split of a model over ranks
//! gives exactly the tokens that one rank gives.

mod activations;
mod attention;
mod dtype;
mod elementwise;
mod error;
mod formats;
mod kv_cache;
mod matrix;
mod multiply;
mod norm;
mod packing;
mod pool;
pub mod probe;
mod rope;
mod simd;

pub use activations::{Activations, Forms, Rows, round_into, rounded_words};
pub use attention::{Attention, AttentionScratch, Batch, Stretch, attend};
pub use dtype::DType;
pub use elementwise::Gate;
pub use error::KernelError;
pub use formats::dequantize;
pub use kv_cache::{KvCache, KvType};
pub use matrix::Matrix;
pub use multiply::{Product, check_products, multiply};
pub use norm::rms_norm_in_place;
pub use packing::{ReadAt, pack, packed_len};
pub use pool::Pool;
pub use rope::{RopeAngles, RopeLayout};

/// The variable of the environment that chooses with which instructions kernels run, and what it may say: `auto`, the
/// default, or `portable`, which is plain code that computes the same bits slowly.
pub const INSTRUCTIONS: (&str, [&str; 2]) = (simd::CHOICE, simd::CHOICES);
