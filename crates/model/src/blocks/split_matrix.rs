//! The matrices at the ends of blocks: their input comes from all ranks, and so does their output.

use std::ops::Range;

use kernels::{Activations, Forms, Matrix, Pool, Product, Rows, multiply, round_into, rounded_words};

use super::{select, select_bias};
use crate::placement::Parts;
use crate::{Exchange, Gguf, ModelError};

/// A matrix of which each rank computes a range of output rows, from input columns of which each rank has some.
///
/// If the weights are quantized, and each rank has whole blocks of columns, each rounds its own, and the rounded columns
/// travel. Else the floats do, and all ranks round all of them. The bits are the same.
pub(super) struct SplitMatrix {
    weights: Matrix,
    bias: Option<Vec<f32>>,
    /// The output rows, by rank.
    rows: Parts,
    /// The input columns, by rank.
    columns: Parts,
    /// The same in words of rounded columns, where these travel.
    words: Option<Parts>,
    /// Of the norm that the whole output goes through before it is added to the hidden state.
    post_norm: Option<Vec<f32>>,
}

/// What the ranks of a stage share while they gather, and the buffers for it.
pub(super) struct Gathering<'a> {
    pub(super) pool: &'a Pool,
    pub(super) exchange: &'a mut dyn Exchange,
    pub(super) tokens: usize,
    /// Added to the mean square in norms.
    pub(super) epsilon: f32,
    pub(super) buffers: &'a mut Buffers,
}

/// Buffers, each of one row per token.
pub(super) struct Buffers {
    /// The input of a product in the form that products take.
    pub(super) activations: Activations,
    /// Columns of all ranks, as they travel.
    travelling: Vec<f32>,
    /// What a block adds to the hidden state.
    result: Vec<f32>,
}

impl Buffers {
    /// For inputs of up to `widest` columns and a hidden state of `hidden`.
    pub(super) fn new(tokens: usize, widest: usize, hidden: usize) -> Self {
        Self {
            activations: Activations::new(tokens, widest),
            travelling: vec![0.0; tokens * widest],
            result: vec![0.0; tokens * hidden],
        }
    }
}

impl SplitMatrix {
    /// The matrix `name` of `file`, of as many rows and columns as the parts have in total.
    pub(super) fn load(file: &Gguf, name: &str, columns: Parts, rows: Parts) -> Result<Self, ModelError> {
        let weights = select(file, &format!("{name}.weight"), columns.total(), rows.total(), rows.own())?;
        let bias = select_bias(file, &format!("{name}.bias"), rows.total(), rows.own())?;
        // A rank without rows of its own knows their format all the same, so all ranks agree on this.
        let rounded = Forms::for_weights(&[&weights]) == Forms::CODES;
        let words = if rounded { columns.mapped(rounded_words) } else { None };
        Ok(Self { weights, bias, rows, columns, words, post_norm: None })
    }

    /// Norms the output before it is added.
    pub(super) fn with_post_norm(self, post_norm: Option<Vec<f32>>) -> Self {
        Self { post_norm, ..self }
    }

    /// This rank's rows.
    pub(super) fn weights(&self) -> &Matrix {
        &self.weights
    }

    /// The same, to be moved.
    pub(super) fn weights_mut(&mut self) -> &mut Matrix {
        &mut self.weights
    }

    /// The input columns that this rank has.
    pub(super) fn own_columns(&self) -> Range<usize> {
        self.columns.own()
    }

    /// Adds the product with all ranks' columns, of which this one has `own`, to the hidden state [tokens, hidden].
    pub(super) fn add_product(
        &self,
        gathering: Gathering<'_>,
        own: &Rows<'_>,
        hidden: &mut [f32],
    ) -> Result<(), ModelError> {
        let Gathering { pool, exchange, tokens, epsilon, buffers } = gathering;
        self.load_input(pool, exchange, tokens, own, buffers)?;
        let added = &mut buffers.result[..hidden.len()];
        let product = Product {
            weights: &self.weights,
            bias: self.bias.as_deref(),
            stride: self.rows.total(),
            out: &mut added[self.rows.own().start..],
        };
        multiply(pool, &buffers.activations, &mut [product]);
        gather(exchange, &self.rows, tokens, added)?;
        let added = match &self.post_norm {
            Some(weight) => Rows::Normed { x: added, weight, epsilon },
            None => Rows::Plain { x: added, columns: self.rows.total() },
        };
        added.add_to(pool, hidden);
        Ok(())
    }

    /// Makes the activations of this rank's columns `own` and what the other ranks have.
    fn load_input(
        &self,
        pool: &Pool,
        exchange: &mut dyn Exchange,
        tokens: usize,
        own: &Rows<'_>,
        buffers: &mut Buffers,
    ) -> Result<(), ModelError> {
        let forms = Forms::for_weights(&[&self.weights]);
        let columns = self.columns.total();
        if self.columns.all.len() < 2 {
            buffers.activations.load(pool, own, forms);
            return Ok(());
        }
        let travelling = &mut buffers.travelling[..tokens * self.words.as_ref().unwrap_or(&self.columns).total()];
        match &self.words {
            Some(words) => {
                if !self.columns.own().is_empty() {
                    round_into(pool, own, travelling, words.own().start, words.total());
                }
                gather(exchange, words, tokens, travelling)?;
                buffers.activations.load_rounded(pool, travelling, columns);
            }
            None => {
                if !self.columns.own().is_empty() {
                    own.write(pool, travelling, self.columns.own().start, columns);
                }
                gather(exchange, &self.columns, tokens, travelling)?;
                buffers.activations.load(pool, &Rows::Plain { x: travelling, columns }, forms);
            }
        }
        Ok(())
    }
}

/// Fetches the other ranks' columns of `buffer` [tokens, parts.total()].
fn gather(exchange: &mut dyn Exchange, parts: &Parts, tokens: usize, buffer: &mut [f32]) -> Result<(), ModelError> {
    if parts.all.len() < 2 {
        return Ok(());
    }
    exchange.all_gather(tokens, parts.total(), &parts.all, buffer).map_err(ModelError::Exchange)
}
