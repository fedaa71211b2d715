//! Buffers for the values between operations. They are made once, for the largest step, so that a step allocates
//! nothing.

use kernels::{Activations, AttentionScratch, Stretch};

use super::experts::Routed;
use crate::ShardOptions;
use crate::arch::{Blueprint, Routes};

/// The buffers. Each holds one row per token.
pub(crate) struct Scratch {
    /// The input of a product in the form that products take.
    pub(super) activations: Activations,
    pub(super) own: Own,
    /// Columns of all ranks, as they travel: up to `widest` of a token.
    pub(super) travelling: Vec<f32>,
    pub(super) widest: usize,
    /// The experts of both parts' tokens, in a mixture.
    pub(super) routes: [Routes; 2],
    /// What a block adds to the hidden state.
    pub(super) result: Vec<f32>,
    /// The stretches of both parts of a step.
    pub(super) cut: [Vec<Stretch>; 2],
}

/// Those whose values stay on this rank.
pub(super) struct Own {
    /// This rank's queries, and after attention its results.
    pub(super) queries: Vec<f32>,
    pub(super) attended: Vec<f32>,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// This rank's columns of the feed-forward network's width; in a mixture for each expert of a token.
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    pub(super) routed: Routed,
    pub(super) attention: AttentionScratch,
}

impl Scratch {
    /// Buffers for the largest step of this model, whatever the split.
    pub(crate) fn new(blueprint: &Blueprint, options: ShardOptions) -> Self {
        let tokens = options.step_tokens;
        let layers = &blueprint.layers;
        let largest = |size: &dyn Fn(&crate::arch::Layer) -> usize| layers.iter().map(size).max().unwrap_or(0);
        let heads = largest(&|layer| layer.attention.heads * layer.attention.head_dim);
        let kv_heads = largest(&|layer| layer.attention.kv_heads * layer.attention.head_dim);
        let wide = largest(&|layer| layer.feed_forward.used() * layer.feed_forward.width);
        let widest = heads.max(wide).max(blueprint.hidden);
        let experts = largest(&|layer| layer.feed_forward.experts.as_ref().map_or(0, |experts| experts.count));
        let used = largest(&|layer| layer.feed_forward.experts.as_ref().map_or(0, |experts| experts.used));
        let rows = |width: usize| vec![0.0; tokens * width];
        let own = Own {
            queries: rows(heads),
            attended: rows(heads),
            keys: rows(kv_heads),
            values: rows(kv_heads),
            gate: rows(wide),
            up: rows(wide),
            routed: Routed::new(blueprint, tokens),
            attention: AttentionScratch::new(
                options.threads,
                largest(&|layer| layer.attention.heads),
                largest(&|layer| layer.attention.head_dim),
                options.context,
            ),
        };
        Self {
            activations: Activations::new(tokens, widest),
            own,
            travelling: rows(widest),
            widest,
            routes: std::array::from_fn(|_| Routes::with_capacity(tokens, experts, used)),
            result: rows(blueprint.hidden),
            cut: std::array::from_fn(|_| Vec::with_capacity(options.slots)),
        }
    }
}
