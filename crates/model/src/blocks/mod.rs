//! The building blocks that architectures are made of. Each loads its own slice of its own tensors and knows how the
//! slices come together again, so that an architecture that is put together from blocks can be split without saying so.

mod attention;
mod feed_forward;
mod scratch;
mod split_matrix;

use std::ops::Range;

use kernels::{Matrix, Pool, RopeAngles};

pub(crate) use self::attention::AttentionBlock;
pub(crate) use self::feed_forward::FeedForwardBlock;
pub(crate) use self::scratch::Scratch;
use self::{scratch::Own, split_matrix::Gathering};

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

impl Step<'_> {
    /// What ranks gather with, apart from the scratch that holds what they gather.
    fn gathering(&mut self) -> (Gathering<'_>, &mut Own) {
        let Scratch { buffers, own } = &mut *self.scratch;
        let (pool, tokens, epsilon) = (self.pool, self.tokens, self.epsilon);
        (Gathering { pool, exchange: self.exchange, tokens, epsilon, buffers }, own)
    }
}

/// Output rows `own` of the matrix `name` [rows, columns].
fn select(file: &Gguf, name: &str, columns: usize, rows: usize, own: Range<usize>) -> Result<Matrix, ModelError> {
    Ok(file.matrix(name, rows, columns)?.select_rows(own))
}

/// Elements `own` of a bias that the file may lack.
fn select_bias(file: &Gguf, name: &str, rows: usize, own: Range<usize>) -> Result<Option<Vec<f32>>, ModelError> {
    Ok(file.optional_vector(name, rows)?.map(|bias| bias[own].to_vec()))
}
