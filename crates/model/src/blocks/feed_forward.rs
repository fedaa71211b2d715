//! The gated feed-forward network (Shazeer, 2020). Each rank computes a range of its width.

use kernels::{Forms, Gate, Matrix, Product, Rows, multiply};

use super::split_matrix::SplitMatrix;
use super::{Step, select};
use crate::arch::{Blueprint, Layer};
use crate::placement::Placement;
use crate::{Gguf, ModelError};

/// One layer's feed-forward network, as far as this rank holds it.
pub(crate) struct FeedForwardBlock {
    activation: Gate,
    norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: SplitMatrix,
}

impl FeedForwardBlock {
    pub(crate) fn load(
        file: &Gguf,
        blueprint: &Blueprint,
        placement: &Placement,
        index: usize,
    ) -> Result<Self, ModelError> {
        let Layer { feed_forward, post_norms, .. } = &blueprint.layers[index];
        let hidden = blueprint.hidden;
        let width = placement.columns(feed_forward.width);
        let name = |tensor: &str| format!("blk.{index}.{tensor}");
        let own = |tensor: &str| select(file, &name(tensor), hidden, feed_forward.width, width.own());
        let post_norm = post_norms.then(|| file.vector_of(&name("post_ffw_norm.weight"), hidden)).transpose()?;
        let (gate, up) = (own("ffn_gate.weight")?, own("ffn_up.weight")?);
        let down = SplitMatrix::load(file, &name("ffn_down"), width, placement.rows(hidden))?;
        Ok(Self {
            activation: feed_forward.gate,
            norm: file.vector_of(&name("ffn_norm.weight"), hidden)?,
            gate,
            up,
            down: down.with_post_norm(post_norm),
        })
    }

    /// The block's weights, in the order in which they are used.
    pub(crate) fn matrices(&self) -> [&Matrix; 3] {
        [&self.gate, &self.up, self.down.weights()]
    }

    /// The same, to be moved.
    pub(crate) fn matrices_mut(&mut self) -> [&mut Matrix; 3] {
        [&mut self.gate, &mut self.up, self.down.weights_mut()]
    }

    /// Adds the network's result for the hidden state [tokens, hidden] to it.
    pub(crate) fn forward(&mut self, step: &mut Step<'_>, hidden: &mut [f32]) -> Result<(), ModelError> {
        let (gathering, scratch) = step.gathering();
        let (pool, columns) = (gathering.pool, self.down.own_columns().len());
        let activations = &mut gathering.buffers.activations;
        let normed = Rows::Normed { x: hidden, weight: &self.norm, epsilon: gathering.epsilon };
        activations.load(pool, &normed, Forms::for_weights(&[&self.gate, &self.up]));
        let gate = &mut scratch.gate[..gathering.tokens * columns];
        let up = &mut scratch.up[..gathering.tokens * columns];
        let mut products = [
            Product { weights: &self.gate, bias: None, out: gate, stride: columns },
            Product { weights: &self.up, bias: None, out: up, stride: columns },
        ];
        multiply(pool, activations, &mut products);
        self.down.add_product(gathering, &Rows::Gated { gate, up, kind: self.activation, columns }, hidden)
    }
}
