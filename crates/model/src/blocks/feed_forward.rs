//! The gated feed-forward network (Shazeer, 2020). Each rank computes a range of its width.

use kernels::{Forms, Gate, Matrix, Product, Rows, add_assign, gate_in_place, multiply};

use super::{SplitMatrix, Step, gather, place_columns, post_norm, select};
use crate::arch::{Blueprint, Layer};
use crate::placement::{Parts, Placement};
use crate::{Gguf, ModelError};

/// One layer's feed-forward network, as far as this rank holds it.
pub(crate) struct FeedForwardBlock {
    activation: Gate,
    /// The network's width, by rank.
    width: Parts,
    norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: SplitMatrix,
    post_norm: Option<Vec<f32>>,
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
        let width = placement.rows(feed_forward.width);
        let name = |tensor: &str| format!("blk.{index}.{tensor}");
        let own = |tensor: &str| select(file, &name(tensor), hidden, feed_forward.width, width.own());
        Ok(Self {
            activation: feed_forward.gate,
            norm: file.vector_of(&name("ffn_norm.weight"), hidden)?,
            gate: own("ffn_gate.weight")?,
            up: own("ffn_up.weight")?,
            down: SplitMatrix::load(file, &name("ffn_down"), feed_forward.width, placement.rows(hidden))?,
            post_norm: post_norms.then(|| file.vector_of(&name("post_ffw_norm.weight"), hidden)).transpose()?,
            width,
        })
    }

    /// The block's weights, in the order in which they are used.
    pub(crate) fn matrices(&self) -> [&Matrix; 3] {
        [&self.gate, &self.up, &self.down.weights]
    }

    /// The same, to be moved.
    pub(crate) fn matrices_mut(&mut self) -> [&mut Matrix; 3] {
        [&mut self.gate, &mut self.up, &mut self.down.weights]
    }

    /// Adds the network's result for the hidden state [tokens, hidden] to it.
    pub(crate) fn forward(&mut self, step: &mut Step<'_>, hidden: &mut [f32]) -> Result<(), ModelError> {
        let (pool, tokens) = (step.pool, step.tokens);
        let scratch = &mut *step.scratch;
        let normed = Rows::Normed { x: hidden, weight: &self.norm, epsilon: step.epsilon };
        scratch.activations.load(pool, &normed, Forms::for_weights(&[&self.gate, &self.up]));
        let (own, total) = (self.width.own(), self.width.total());
        let gate = &mut scratch.gate[..tokens * own.len()];
        let up = &mut scratch.up[..tokens * own.len()];
        multiply(
            pool,
            &scratch.activations,
            &mut [
                Product { weights: &self.gate, bias: None, out: gate, stride: own.len() },
                Product { weights: &self.up, bias: None, out: up, stride: own.len() },
            ],
        );
        if self.width.all.len() < 2 {
            let gated = Rows::Gated { gate, up, kind: self.activation, columns: total };
            scratch.activations.load(pool, &gated, self.down.forms());
        } else {
            gate_in_place(pool, gate, up, self.activation);
            let wide = &mut scratch.wide[..tokens * total];
            place_columns(gate, own, wide, total);
            gather(step.exchange, &self.width, tokens, wide)?;
            scratch.activations.load(pool, &Rows::Plain { x: wide, columns: total }, self.down.forms());
        }
        let mut result = std::mem::take(&mut scratch.result);
        let added = &mut result[..hidden.len()];
        self.down.multiply(pool, &scratch.activations, added);
        let gathered = self.down.gather(step.exchange, tokens, added);
        post_norm(step, self.post_norm.as_ref(), added);
        add_assign(pool, hidden, added);
        step.scratch.result = result;
        gathered
    }
}
