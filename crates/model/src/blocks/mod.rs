//! The building blocks that architectures are made of. Each loads its own slice of its own tensors and knows how the
//! slices come together again, so that an architecture that is put together from blocks can be split without saying so.

mod attention;
mod experts;
mod feed_forward;
mod gathered;
mod run;
mod scratch;
mod split_matrix;

use std::ops::Range;

use kernels::{KvCache, Matrix, Rows};

pub(crate) use self::attention::attention;
pub(crate) use self::feed_forward::feed_forward;
pub(crate) use self::run::run;
use self::run::{Part, Workplace};
pub(crate) use self::scratch::Scratch;
use self::split_matrix::SplitMatrix;
use crate::{Gguf, ModelError, Slices};

/// What adds something to the hidden state: columns of which each rank computes its own, and a matrix that all of them are
/// multiplied with, of which each rank has some rows. In a mixture of experts there is one for each expert.
pub(crate) struct Block {
    columns: Box<dyn Columns>,
    output: Box<dyn Output>,
}

/// How a rank computes its columns.
trait Columns: Send + Sync {
    /// Computes them from the hidden state and has `output` take them. A rank may have none.
    fn compute(&mut self, workplace: &mut Workplace<'_>, part: &mut Part<'_>, output: &dyn Output);

    /// Its weights, in the order in which they are used.
    fn matrices(&self) -> Vec<&Matrix>;

    /// The same, to be moved.
    fn matrices_mut(&mut self) -> Vec<&mut Matrix>;

    /// Bytes of weights that are read for a token.
    fn bytes_read(&self) -> usize {
        self.matrices().into_iter().map(Matrix::byte_len).sum()
    }

    /// Its KV cache, if it has one.
    fn kv_cache(&self) -> Option<&KvCache> {
        None
    }

    /// The same, to be changed.
    fn kv_cache_mut(&mut self) -> Option<&mut KvCache> {
        None
    }
}

/// What becomes of all ranks' columns.
trait Output: Send + Sync {
    /// The columns that this rank computes.
    fn own_columns(&self) -> Range<usize>;

    /// Whether this rank has all of it, so that there is nothing to gather.
    fn is_whole(&self) -> bool;

    /// Takes this rank's columns for some tokens, so that they can travel: then [`Output::gather_columns`] is next. A rank that
    /// is alone has them ready for the product.
    fn take_columns(&self, workplace: &mut Workplace<'_>, own: &Rows<'_>, part: &mut Part<'_>);

    /// What [`Output::take_columns`] has the ranks of a stage gather.
    fn gather_columns<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a>;

    /// Computes this rank's rows of the product with all ranks' columns.
    fn multiply(&self, workplace: &mut Workplace<'_>, part: &mut Part<'_>);

    /// What [`Output::multiply`] has the ranks of a stage gather.
    fn gather_rows<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a>;

    /// Adds the whole product to the hidden state.
    fn add(&self, workplace: &Workplace<'_>, part: &mut Part<'_>);

    /// Its weights, in the order in which they are used.
    fn matrices(&self) -> Vec<&Matrix>;

    /// The same, to be moved.
    fn matrices_mut(&mut self) -> Vec<&mut Matrix>;

    /// Bytes of weights that are read for a token.
    fn bytes_read(&self) -> usize {
        self.matrices().into_iter().map(Matrix::byte_len).sum()
    }
}

impl Block {
    /// The block's weights, in the order in which they are used.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.columns.matrices().into_iter().chain(self.output.matrices())
    }

    /// The same, to be moved.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Matrix> {
        self.columns.matrices_mut().into_iter().chain(self.output.matrices_mut())
    }

    /// Bytes of weights that are read for a token.
    pub(crate) fn bytes_read(&self) -> usize {
        self.columns.bytes_read() + self.output.bytes_read()
    }

    /// Its KV cache, if it has one.
    pub(crate) fn kv_cache(&self) -> Option<&KvCache> {
        self.columns.kv_cache()
    }

    /// The same, to be changed.
    pub(crate) fn kv_cache_mut(&mut self) -> Option<&mut KvCache> {
        self.columns.kv_cache_mut()
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
