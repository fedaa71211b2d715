//! The building blocks that architectures are made of. Each loads its own slice of its own tensors and knows how the
//! slices come together again, so that an architecture that is put together from blocks can be split without saying so.

mod attention;
mod feed_forward;
mod scratch;

use std::ops::Range;

use kernels::{Activations, Forms, Matrix, Pool, Product, RopeAngles, multiply, rms_norm_in_place};

pub(crate) use self::attention::AttentionBlock;
pub(crate) use self::feed_forward::FeedForwardBlock;
pub(crate) use self::scratch::Scratch;
use crate::placement::Parts;
use crate::{Exchange, Gguf, ModelError, Stretch};

/// What all blocks share during one step.
pub(crate) struct Step<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) exchange: &'a mut dyn Exchange,
    pub(crate) scratch: &'a mut Scratch,
    /// One table per rope of the blueprint, prepared for this step's positions.
    pub(crate) angles: &'a [RopeAngles],
    /// The sequences whose tokens the step takes, in the order of its rows.
    pub(crate) stretches: &'a [Stretch],
    /// Tokens in the step: those of all stretches together.
    pub(crate) tokens: usize,
    /// Added to the mean square in norms.
    pub(crate) epsilon: f32,
}

/// A matrix of which this rank computes a range of output rows, and which all ranks then gather.
pub(crate) struct SplitMatrix {
    weights: Matrix,
    bias: Option<Vec<f32>>,
    parts: Parts,
}

impl SplitMatrix {
    fn load(file: &Gguf, name: &str, columns: usize, parts: Parts) -> Result<Self, ModelError> {
        let weights = select(file, &format!("{name}.weight"), columns, parts.total(), parts.own())?;
        let bias = select_bias(file, &format!("{name}.bias"), parts.total(), parts.own())?;
        Ok(Self { weights, bias, parts })
    }

    /// The forms in which the product takes its input.
    fn forms(&self) -> Forms {
        Forms::for_weights(&[&self.weights])
    }

    /// Computes this rank's rows into their columns of `out` [tokens, rows].
    fn multiply(&self, pool: &Pool, input: &Activations, out: &mut [f32]) {
        let stride = self.parts.total();
        let out = &mut out[self.parts.own().start..];
        multiply(pool, input, &mut [Product { weights: &self.weights, bias: self.bias.as_deref(), out, stride }]);
    }

    /// Fetches the other ranks' columns of `out` [tokens, rows].
    fn gather(&self, exchange: &mut dyn Exchange, tokens: usize, out: &mut [f32]) -> Result<(), ModelError> {
        gather(exchange, &self.parts, tokens, out)
    }
}

/// Fetches the other ranks' columns of `buffer` [tokens, parts.total()].
fn gather(exchange: &mut dyn Exchange, parts: &Parts, tokens: usize, buffer: &mut [f32]) -> Result<(), ModelError> {
    if parts.all.len() < 2 {
        return Ok(());
    }
    exchange.all_gather(tokens, parts.total(), &parts.all, buffer).map_err(ModelError::Exchange)
}

/// Output rows `own` of the matrix `name` [rows, columns].
fn select(file: &Gguf, name: &str, columns: usize, rows: usize, own: Range<usize>) -> Result<Matrix, ModelError> {
    Ok(file.matrix(name, rows, columns)?.select_rows(own))
}

/// Elements `own` of a bias that the file may lack.
fn select_bias(file: &Gguf, name: &str, rows: usize, own: Range<usize>) -> Result<Option<Vec<f32>>, ModelError> {
    Ok(file.optional_vector(name, rows)?.map(|bias| bias[own].to_vec()))
}

/// Copies `local` [tokens, columns.len()] into `columns` of `full` [tokens, width].
fn place_columns(local: &[f32], columns: Range<usize>, full: &mut [f32], width: usize) {
    if columns.is_empty() {
        return;
    }
    for (from, to) in local.chunks_exact(columns.len()).zip(full.chunks_exact_mut(width)) {
        to[columns.clone()].copy_from_slice(from);
    }
}

/// Norms a block's result once more, where the architecture does so.
fn post_norm(step: &Step<'_>, weight: Option<&Vec<f32>>, result: &mut [f32]) {
    if let Some(weight) = weight {
        rms_norm_in_place(step.pool, result, weight.len(), weight, step.epsilon);
    }
}
