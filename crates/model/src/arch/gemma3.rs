//! Gemma 3, text (Google DeepMind, 2025).
//!
//! Most layers look back over a sliding window with a rope of base 10,000; every sixth looks at everything with the
//! rope of the metadata. Norms stand before and after both blocks, on queries and on keys. Converters have already
//! added 1 to the norm weights.

use kernels::{Gate, RopeLayout};

use super::{Attention, Blueprint, FeedForward, Hyperparameters, Layer, Rope, RopeScaling};
use crate::ModelError;

/// Indices into the blueprint's ropes.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

/// The 27B model, told by its layer count, scales queries by the width per head rather than by the head's width.
const LAYERS_OF_27B: usize = 62;

pub(super) fn blueprint(keys: &Hyperparameters<'_>) -> Result<Blueprint, ModelError> {
    let count = keys.layers()?;
    let window = keys.window()?;
    let period = keys.find("attention.sliding_window_pattern")?.unwrap_or(6);
    let layers = (0..count).map(|index| {
        let (heads, kv_heads, head_dim) = keys.heads(index)?;
        let scaled = if count == LAYERS_OF_27B { keys.hidden()? / heads } else { head_dim };
        let local = window.is_some() && period > 0 && index % period != period - 1;
        let (rope, window) = if local { (LOCAL, window) } else { (GLOBAL, None) };
        let scale = 1.0 / (scaled as f32).sqrt();
        Ok(Layer {
            attention: Attention { heads, kv_heads, head_dim, scale, window, rope, query_key_norm: true },
            feed_forward: FeedForward::dense(keys.width(index)?, Gate::GeluTanh),
            post_norms: true,
        })
    });
    let layers = layers.collect::<Result<Vec<_>, ModelError>>()?;
    let global = keys.rope(RopeLayout::Halves)?;
    let base = keys.find_f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let local = Rope { base, scaling: RopeScaling::None, ..global.clone() };
    keys.blueprint((keys.hidden()? as f32).sqrt(), vec![global, local], layers)
}
