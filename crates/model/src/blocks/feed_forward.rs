//! The gated feed-forward network (Shazeer, 2020). Each rank computes a range of its width.

use kernels::{Forms, Gate, Matrix, Product, Rows, multiply};

use super::run::{Part, Workplace};
use super::{Block, Columns, Output, SplitMatrix, select};
use crate::arch::{Blueprint, Layer};
use crate::placement::Placement;
use crate::{Gguf, ModelError};

/// One layer's feed-forward network, as far as this rank holds it, without its last matrix.
struct FeedForward {
    activation: Gate,
    norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
}

/// Loads the feed-forward network of layer `index`.
pub(crate) fn feed_forward(
    file: &Gguf,
    blueprint: &Blueprint,
    placement: &Placement,
    index: usize,
) -> Result<Block, ModelError> {
    let Layer { feed_forward, post_norms, .. } = &blueprint.layers[index];
    if let Some(experts) = &feed_forward.experts {
        return super::experts::experts(file, blueprint, placement, index, experts);
    }
    let hidden = blueprint.hidden;
    let width = placement.columns(feed_forward.width);
    let name = |tensor: &str| format!("blk.{index}.{tensor}");
    let own = |tensor: &str| select(file, &name(tensor), hidden, feed_forward.width, width.own());
    let post_norm = post_norms.then(|| file.vector_of(&name("post_ffw_norm.weight"), hidden)).transpose()?;
    let columns = FeedForward {
        activation: feed_forward.gate,
        norm: file.vector_of(&name("ffn_norm.weight"), hidden)?,
        gate: own("ffn_gate.weight")?,
        up: own("ffn_up.weight")?,
    };
    let down = SplitMatrix::load(file, &name("ffn_down"), width, placement.rows(hidden))?;
    Ok(Block { columns: Box::new(columns), output: down.with_post_norm(post_norm) })
}

impl Columns for FeedForward {
    fn compute(&mut self, workplace: &mut Workplace<'_>, part: &mut Part<'_>, output: &dyn Output) {
        let (pool, columns) = (workplace.pool, output.own_columns().len());
        let normed = Rows::Normed { x: part.hidden, weight: &self.norm, epsilon: workplace.epsilon };
        workplace.activations.load(pool, &normed, Forms::for_weights(&[&self.gate, &self.up]));
        let mut gate = std::mem::take(&mut workplace.own.gate);
        let mut up = std::mem::take(&mut workplace.own.up);
        let (gates, ups) = (&mut gate[..part.tokens * columns], &mut up[..part.tokens * columns]);
        let products = [(&self.gate, &mut *gates), (&self.up, &mut *ups)];
        let product = |(weights, out)| Product { weights, bias: None, tokens: 0..part.tokens, out, stride: columns };
        multiply(pool, workplace.activations, products.map(product));
        output.take_columns(workplace, &Rows::Gated { gate: gates, up: ups, kind: self.activation, columns }, part);
        (workplace.own.gate, workplace.own.up) = (gate, up);
    }

    fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.gate, &self.up]
    }

    fn matrices_mut(&mut self) -> Vec<&mut Matrix> {
        vec![&mut self.gate, &mut self.up]
    }
}
