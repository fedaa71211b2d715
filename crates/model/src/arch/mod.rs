//! Architectures: what a model is made of, read from its metadata.
//!
//! An architecture is one short file that says which building blocks its layers use, with which sizes. It never
//! mentions ranks, files or kernels: how tensors are split follows from the blocks, which all architectures share.

mod gemma3;
mod hyperparameters;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;
mod routing;

use std::ops::Range;

use kernels::{Gate, RopeLayout};

use self::hyperparameters::Hyperparameters;
pub use self::rope::{Rope, RopeScaling};
pub use self::routing::{Routes, Routing, Scoring};
use crate::{Gguf, ModelError, split};

/// Reads an architecture's blueprint from its metadata.
type Reader = fn(&Hyperparameters<'_>) -> Result<Blueprint, ModelError>;

/// The architectures by the name that `general.architecture` gives them.
const ARCHITECTURES: &[(&str, Reader)] = &[
    ("gemma3", gemma3::blueprint),
    ("llama", llama::blueprint),
    ("qwen2", qwen2::blueprint),
    ("qwen3", qwen3::blueprint),
    ("qwen3moe", qwen3_moe::blueprint),
];

/// A whole model, as a list of building blocks and their sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// Name of the architecture.
    pub architecture: String,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Tokens the model was trained to look back at.
    pub context: usize,
    /// Added to the mean square in every norm.
    pub epsilon: f32,
    /// Factor on the embedded tokens.
    pub embedding_scale: f32,
    /// The kinds of position encoding that layers refer to by index.
    pub ropes: Vec<Rope>,
    /// The layers in order.
    pub layers: Vec<Layer>,
}

/// One layer: attention, then feed-forward, each with a norm before it and added to the hidden state.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Its attention.
    pub attention: Attention,
    /// Its feed-forward network.
    pub feed_forward: FeedForward,
    /// Whether the results of both are normed once more before they are added.
    pub post_norms: bool,
}

/// Self-attention with grouped queries.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// How many of the latest positions a query sees, itself included; `None` sees all.
    pub window: Option<usize>,
    /// Index into [`Blueprint::ropes`].
    pub rope: usize,
    /// Whether queries and keys are normed per head before rotation.
    pub query_key_norm: bool,
}

/// A gated feed-forward network, `down(act(gate(x)) * up(x))`, or several of which each token goes through some.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedForward {
    /// Width between up and down, of each expert if there are any.
    pub width: usize,
    /// The activation.
    pub gate: Gate,
    /// Who the experts are, in a mixture of them.
    pub experts: Option<Experts>,
}

/// A mixture of experts (Shazeer et al., 2017): how many there are, and which of them a token goes through.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token goes through.
    pub used: usize,
    /// How the router's results become weights.
    pub routing: Routing,
}

impl FeedForward {
    /// A network that is no mixture.
    pub fn dense(width: usize, gate: Gate) -> Self {
        Self { width, gate, experts: None }
    }

    /// Experts that a token goes through; one if there is no mixture.
    pub fn used(&self) -> usize {
        self.experts.as_ref().map_or(1, |experts| experts.used)
    }
}

impl Blueprint {
    /// Reads the blueprint of the model in `file`.
    ///
    /// # Errors
    /// When the architecture is unknown, or its metadata is incomplete or contradicts itself.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ModelError> {
        let name = file.metadata().get_str("general.architecture")?;
        let known = ARCHITECTURES.iter().find(|(known, _)| *known == name);
        let Some((name, blueprint)) = known else {
            let names: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
            return Err(ModelError::Unsupported {
                file: file.metadata().file().to_owned(),
                what: format!("architecture `{name}`"),
                advice: format!("supported are {}", names.join(", ")),
            });
        };
        blueprint(&Hyperparameters::new(file, name))
    }

    /// How the layers are shared out over `count` stages of a pipeline. The head (the product with the whole vocabulary), which
    /// the last one computes, counts half: every token of an answer goes through it, but hardly any of a prompt.
    pub fn stages(&self, count: usize) -> Vec<Range<usize>> {
        let weights = |layer: &Layer| {
            let Attention { heads, kv_heads, head_dim, .. } = layer.attention;
            self.hidden * (2 * head_dim * (heads + kv_heads) + 3 * layer.feed_forward.used() * layer.feed_forward.width)
        };
        let all: usize = self.layers.iter().map(weights).sum();
        let head = (self.vocabulary * self.hidden * self.layers.len()) as f64 / all.max(1) as f64;
        split::stages(self.layers.len(), head / 2.0, count)
    }

    /// KV cache bytes that one token takes over all layers, on one rank that holds the whole model.
    pub fn kv_bytes_per_token(&self, kind: kernels::KvType) -> usize {
        let layer = |attention: &Attention| 2 * attention.kv_heads * kind.bytes(attention.head_dim);
        self.layers.iter().map(|each| layer(&each.attention)).sum()
    }
}

/// The layers of the usual kind: all alike, one rope, SiLU, no norms after the blocks.
fn uniform(
    keys: &Hyperparameters<'_>,
    layout: RopeLayout,
    query_key_norm: bool,
    window: Option<usize>,
) -> Result<Blueprint, ModelError> {
    let layers = (0..keys.layers()?).map(|index| {
        let (heads, kv_heads, head_dim) = keys.heads(index)?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        Ok(Layer {
            attention: Attention { heads, kv_heads, head_dim, scale, window, rope: 0, query_key_norm },
            feed_forward: keys.feed_forward(index)?,
            post_norms: false,
        })
    });
    let layers = layers.collect::<Result<Vec<_>, ModelError>>()?;
    let ropes = vec![keys.rope(layout)?];
    keys.blueprint(1.0, ropes, layers)
}
