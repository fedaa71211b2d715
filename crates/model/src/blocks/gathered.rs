//! The columns of all ranks on their way to a product.

use std::ops::Range;

use kernels::{Activations, Forms, Matrix, Pool, Rows, round_into, rounded_words};

use crate::Slices;
use crate::placement::Parts;

/// The input columns of a product, of which each rank computes some.
///
/// If the weights are quantized, and each rank has whole blocks of columns, each rounds its own, and the rounded columns
/// travel. Else the floats do, and all ranks round all of them. The bits are the same.
pub(super) struct Gathered {
    /// The columns, by rank.
    columns: Parts,
    /// The same in words of rounded columns, where these travel.
    words: Option<Parts>,
    /// The form in which the product takes its input.
    forms: Forms,
}

impl Gathered {
    /// Columns that are multiplied with `weights`.
    pub(super) fn new(columns: Parts, weights: &[&Matrix]) -> Self {
        // A rank without rows of its own knows their format all the same, so all ranks agree on this.
        let forms = Forms::for_weights(weights);
        let words = if forms == Forms::CODES { columns.mapped(rounded_words) } else { None };
        Self { columns, words, forms }
    }

    /// The columns that this rank has.
    pub(super) fn own(&self) -> Range<usize> {
        self.columns.own()
    }

    /// Whether this rank has all of them, so that there is nothing to gather.
    pub(super) fn is_whole(&self) -> bool {
        self.columns.all.len() < 2
    }

    /// Takes this rank's columns of some rows, so that they can travel. A rank that is alone has them ready for the product.
    pub(super) fn take(&self, pool: &Pool, own: &Rows<'_>, travelling: &mut [f32], activations: &mut Activations) {
        if self.is_whole() {
            activations.load(pool, own, self.forms);
        } else if !self.own().is_empty() {
            let (first, stride) = (self.travelling().own().start, self.travelling().total());
            let travelling = &mut travelling[..own.count() * stride];
            match &self.words {
                Some(_) => round_into(pool, own, travelling, first, stride),
                None => own.write(pool, travelling, first, stride),
            }
        }
    }

    /// What [`Gathered::take`] has the ranks of a stage gather of so many rows.
    pub(super) fn slices<'a>(&'a self, rows: usize, travelling: &'a mut [f32]) -> Slices<'a> {
        let parts = self.travelling();
        parts.slices(rows, &mut travelling[..rows * parts.total()])
    }

    /// Makes all ranks' columns of so many rows ready for the product, unless they are already.
    pub(super) fn load(&self, pool: &Pool, rows: usize, travelling: &[f32], activations: &mut Activations) {
        if self.is_whole() {
            return;
        }
        let (columns, travelling) = (self.columns.total(), &travelling[..rows * self.travelling().total()]);
        match &self.words {
            Some(_) => activations.load_rounded(pool, travelling, columns),
            None => activations.load(pool, &Rows::Plain { x: travelling, columns }, self.forms),
        }
    }

    /// The columns as they travel, by rank.
    fn travelling(&self) -> &Parts {
        self.words.as_ref().unwrap_or(&self.columns)
    }
}
