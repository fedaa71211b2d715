//! The inputs of products.

use crate::Pool;

/// Up to `max_tokens` rows of up to `max_columns` values, ready to be multiplied with a [`crate::Matrix`] of any format.
pub struct Activations {
    values: Vec<f32>,
    tokens: usize,
    columns: usize,
}

impl Activations {
    /// Room for `max_tokens` rows of `max_columns` values. This is the only place that allocates.
    pub fn new(max_tokens: usize, max_columns: usize) -> Activations {
        Activations { values: vec![0.0; max_tokens * max_columns], tokens: 0, columns: 0 }
    }

    /// Takes over the rows of `x`, `[tokens, columns]`.
    ///
    /// # Panics
    /// When `x` is no whole number of rows, or there is no room for so many.
    pub fn load(&mut self, _pool: &Pool, x: &[f32], columns: usize) {
        assert!(columns > 0 && x.len().is_multiple_of(columns), "{} values are no rows of {columns}", x.len());
        assert!(x.len() <= self.values.len(), "no room for {} rows of {columns} values", x.len() / columns);
        self.values[..x.len()].copy_from_slice(x);
        self.tokens = x.len() / columns;
        self.columns = columns;
    }

    /// Rows that are loaded.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values in each of them.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The values of one row.
    pub(crate) fn row(&self, token: usize) -> &[f32] {
        &self.values[token * self.columns..][..self.columns]
    }
}
