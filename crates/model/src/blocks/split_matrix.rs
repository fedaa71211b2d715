//! The matrices at the ends of blocks: their input comes from all ranks, and so does their output.

use std::ops::Range;

use kernels::{Matrix, Product, Rows, multiply};

use super::gathered::Gathered;
use super::run::{Part, Workplace};
use super::{Output, select, select_bias};
use crate::placement::Parts;
use crate::{Gguf, ModelError, Slices};

/// A matrix of which each rank computes a range of output rows, from input columns of which each rank has some.
pub(super) struct SplitMatrix {
    weights: Matrix,
    bias: Option<Vec<f32>>,
    /// The output rows, by rank.
    rows: Parts,
    columns: Gathered,
    /// Of the norm that the whole output goes through before it is added to the hidden state.
    post_norm: Option<Vec<f32>>,
}

impl SplitMatrix {
    /// The matrix `name` of `file`, of as many rows and columns as the parts have in total.
    pub(super) fn load(file: &Gguf, name: &str, columns: Parts, rows: Parts) -> Result<Self, ModelError> {
        let weights = select(file, &format!("{name}.weight"), columns.total(), rows.total(), rows.own())?;
        let bias = select_bias(file, &format!("{name}.bias"), rows.total(), rows.own())?;
        let columns = Gathered::new(columns, &[&weights]);
        Ok(Self { weights, bias, rows, columns, post_norm: None })
    }

    /// Norms the output before it is added.
    pub(super) fn with_post_norm(self, post_norm: Option<Vec<f32>>) -> Box<Self> {
        Box::new(Self { post_norm, ..self })
    }
}

impl Output for SplitMatrix {
    fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.weights]
    }

    fn matrices_mut(&mut self) -> Vec<&mut Matrix> {
        vec![&mut self.weights]
    }

    fn own_columns(&self) -> Range<usize> {
        self.columns.own()
    }

    fn is_whole(&self) -> bool {
        self.columns.is_whole()
    }

    fn take_columns(&self, workplace: &mut Workplace<'_>, own: &Rows<'_>, part: &mut Part<'_>) {
        self.columns.take(workplace.pool, own, part.travelling, workplace.activations);
    }

    fn gather_columns<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a> {
        self.columns.slices(part.tokens, part.travelling)
    }

    fn multiply(&self, workplace: &mut Workplace<'_>, part: &mut Part<'_>) {
        self.columns.load(workplace.pool, part.tokens, part.travelling, workplace.activations);
        let product = Product {
            weights: &self.weights,
            bias: self.bias.as_deref(),
            tokens: 0..part.tokens,
            stride: self.rows.total(),
            out: &mut part.result[self.rows.own().start..],
        };
        multiply(workplace.pool, workplace.activations, [product]);
    }

    fn gather_rows<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a> {
        self.rows.slices(part.tokens, part.result)
    }

    fn add(&self, workplace: &Workplace<'_>, part: &mut Part<'_>) {
        let added = match &self.post_norm {
            Some(weight) => Rows::Normed { x: part.result, weight, epsilon: workplace.epsilon },
            None => Rows::Plain { x: part.result, columns: self.rows.total() },
        };
        added.add_to(workplace.pool, part.hidden);
    }
}
