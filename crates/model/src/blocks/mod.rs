//! The building blocks that architectures are made of. Each loads its own slice of its own tensors and knows how the
//! slices come together again, so that an architecture that is put together from blocks can be split without saying so.

mod attention;
mod feed_forward;
mod run;
mod scratch;
mod split_matrix;

use std::ops::Range;

use kernels::Matrix;

pub(crate) use self::attention::attention;
pub(crate) use self::feed_forward::feed_forward;
pub(crate) use self::run::run;
use self::run::{Part, Workplace};
pub(crate) use self::scratch::Scratch;
use self::split_matrix::SplitMatrix;
use crate::{Gguf, ModelError};

/// What adds something to the hidden state: columns of which each rank computes its own, and a matrix that all of them are
/// multiplied with, of which each rank has some rows.
pub(crate) struct Block {
    columns: Box<dyn Columns>,
    output: SplitMatrix,
}

/// How a rank computes its columns.
trait Columns: Send + Sync {
    /// Computes them from the hidden state and has `output` take them. A rank may have none.
    fn compute(&mut self, workplace: &mut Workplace<'_>, part: &mut Part<'_>, output: &SplitMatrix);

    /// Its weights, in the order in which they are used.
    fn matrices(&self) -> Vec<&Matrix>;

    /// The same, to be moved.
    fn matrices_mut(&mut self) -> Vec<&mut Matrix>;

    /// Copies a block of the KV cache, if it has one.
    fn copy_kv_block(&mut self, _from: u32, _to: u32) {}
}

impl Block {
    /// The block's weights, in the order in which they are used.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.columns.matrices().into_iter().chain([self.output.weights()])
    }

    /// The same, to be moved.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Matrix> {
        self.columns.matrices_mut().into_iter().chain([self.output.weights_mut()])
    }

    /// Copies a block of the KV cache, if it has one.
    pub(crate) fn copy_kv_block(&mut self, from: u32, to: u32) {
        self.columns.copy_kv_block(from, to);
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
