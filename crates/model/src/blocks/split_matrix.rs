//! The matrices at the ends of blocks: their input comes from all ranks, and so does their output.

use std::ops::Range;

use kernels::{Forms, Matrix, Product, Rows, multiply, round_into, rounded_words};

use super::run::{Part, Workplace};
use super::{Output, select, select_bias};
use crate::placement::Parts;
use crate::{Gguf, ModelError, Slices};

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
    pub(super) fn with_post_norm(self, post_norm: Option<Vec<f32>>) -> Box<Self> {
        Box::new(Self { post_norm, ..self })
    }

    /// The form in which the product takes its input.
    fn forms(&self) -> Forms {
        Forms::for_weights(&[&self.weights])
    }

    /// The input columns as they travel, by rank.
    fn travelling(&self) -> &Parts {
        self.words.as_ref().unwrap_or(&self.columns)
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
        self.columns.all.len() < 2
    }

    fn take_columns(&self, workplace: &mut Workplace<'_>, own: &Rows<'_>, part: &mut Part<'_>) {
        let pool = workplace.pool;
        if self.is_whole() {
            workplace.activations.load(pool, own, self.forms());
        } else if !self.columns.own().is_empty() {
            let (first, stride) = (self.travelling().own().start, self.travelling().total());
            let travelling = &mut part.travelling[..part.tokens * stride];
            match &self.words {
                Some(_) => round_into(pool, own, travelling, first, stride),
                None => own.write(pool, travelling, first, stride),
            }
        }
    }

    fn gather_columns<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a> {
        let parts = self.travelling();
        parts.slices(part.tokens, &mut part.travelling[..part.tokens * parts.total()])
    }

    fn multiply(&self, workplace: &mut Workplace<'_>, part: &mut Part<'_>) {
        let (pool, columns) = (workplace.pool, self.columns.total());
        if !self.is_whole() {
            let travelling = &part.travelling[..part.tokens * self.travelling().total()];
            match &self.words {
                Some(_) => workplace.activations.load_rounded(pool, travelling, columns),
                None => workplace.activations.load(pool, &Rows::Plain { x: travelling, columns }, self.forms()),
            }
        }
        let product = Product {
            weights: &self.weights,
            bias: self.bias.as_deref(),
            tokens: 0..part.tokens,
            stride: self.rows.total(),
            out: &mut part.result[self.rows.own().start..],
        };
        multiply(pool, workplace.activations, [product]);
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
