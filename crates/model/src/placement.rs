//! Which part of a model a rank holds.

use std::ops::Range;

use crate::Slices;
use crate::arch::{Attention, Blueprint};
use crate::split::{proportional, proportional_units};

/// Output rows are cut at multiples of this many, so that kernels which work on several rows at once rarely meet a cut.
const ROW_UNIT: usize = 8;

/// Columns are rounded to integers in blocks of this many.
const COLUMN_UNIT: usize = 32;

/// The place of one rank: a range of layers (its stage), and a slice of each tensor in them.
///
/// Every matrix is split by output rows. The ranks of a stage gather the slices after each product, so that every
/// element is computed by exactly one rank, in the order in which a single rank computes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Index of this rank within its stage.
    pub index: usize,
    /// Share of the work of each rank of the stage, in any unit.
    pub shares: Vec<f64>,
    /// The layers of this stage.
    pub layers: Range<usize>,
    /// Whether this stage embeds the tokens.
    pub first: bool,
    /// Whether this stage computes the logits.
    pub last: bool,
}

impl Placement {
    /// The whole model on one rank.
    pub fn whole(layers: usize) -> Self {
        Self { index: 0, shares: vec![1.0], layers: 0..layers, first: true, last: true }
    }

    /// Rank `rank` of as many stages as `layers` has ranges of layers, with `shares.len()` ranks each; ranks are numbered stage
    /// by stage.
    pub fn of_rank(rank: usize, layers: &[Range<usize>], shares: &[f64]) -> Self {
        let (stage, index) = (rank / shares.len(), rank % shares.len());
        let (first, last) = (stage == 0, stage + 1 == layers.len());
        Self { index, shares: shares.to_vec(), layers: layers[stage].clone(), first, last }
    }

    /// How `rows` output rows are shared out within the stage.
    pub(crate) fn rows(&self, rows: usize) -> Parts {
        // Small matrices are cut finer, so that no rank goes without for the sake of round numbers.
        let unit = if rows >= 4 * ROW_UNIT * self.shares.len() { ROW_UNIT } else { 1 };
        Parts { all: proportional_units(rows, unit, &self.shares), index: self.index }
    }

    /// How `columns` that are the output of one product and the input of the next are shared out within the stage: in whole
    /// blocks, so that each rank can round its own.
    pub(crate) fn columns(&self, columns: usize) -> Parts {
        let even = self.rows(columns);
        let all = proportional_units(columns, COLUMN_UNIT, &self.shares);
        // Small models are cut finer, because a block more or less would be much to a rank.
        let much = all.iter().zip(&even.all).any(|(blocks, even)| blocks.len() * 8 > even.len() * 9);
        if much { even } else { Parts { all, index: self.index } }
    }

    /// How the query heads are shared out within the stage.
    pub(crate) fn heads(&self, attention: &Attention) -> Parts {
        Parts { all: proportional(attention.heads, &self.shares), index: self.index }
    }

    /// How the vocabulary is shared out within the last stage.
    pub fn vocabulary(&self, blueprint: &Blueprint) -> Vec<Range<usize>> {
        self.rows(blueprint.vocabulary).all
    }
}

/// A dimension cut into one range per rank of the stage, and which of them is one's own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts {
    pub(crate) all: Vec<Range<usize>>,
    index: usize,
}

impl Parts {
    /// This rank's range.
    pub(crate) fn own(&self) -> Range<usize> {
        self.all[self.index].clone()
    }

    /// The whole dimension.
    pub(crate) fn total(&self) -> usize {
        self.all.last().map_or(0, |range| range.end)
    }

    /// A matrix of `rows` rows that is cut so, on its way.
    pub(crate) fn slices<'a>(&'a self, rows: usize, buffer: &'a mut [f32]) -> Slices<'a> {
        Slices { rows, width: self.total(), parts: &self.all, buffer }
    }

    /// The same cuts, each where `place` says, if it does so of all.
    pub(crate) fn mapped(&self, place: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let all =
            self.all.iter().map(|range| Some(place(range.start)?..place(range.end)?)).collect::<Option<Vec<_>>>()?;
        Some(Self { all, index: self.index })
    }

    /// The same cuts with every unit `factor` elements wide.
    pub(crate) fn scaled(&self, factor: usize) -> Self {
        let all = self.all.iter().map(|range| range.start * factor..range.end * factor).collect();
        Self { all, index: self.index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_stage_by_stage() {
        let places: Vec<_> = (0..4).map(|rank| Placement::of_rank(rank, &[0..3, 3..5], &[1.0, 1.0])).collect();
        let summary: Vec<_> = places.iter().map(|p| (p.layers.clone(), p.index, p.first, p.last)).collect();
        assert_eq!(
            summary,
            [(0..3, 0, true, false), (0..3, 1, true, false), (3..5, 0, false, true), (3..5, 1, false, true)]
        );
    }

    #[test]
    fn large_matrices_are_cut_at_round_rows_and_small_ones_evenly() {
        let place = Placement::of_rank(1, &[0..1, 1..1], &[1.0, 1.0, 1.0]);
        assert_eq!(place.rows(576).all, [0..192, 192..384, 384..576]);
        assert_eq!(place.rows(1000).own(), 336..672);
        assert_eq!(place.rows(7).all, [0..3, 3..5, 5..7]);
        assert_eq!(place.columns(1536).all, [0..512, 512..1024, 1024..1536]);
        assert_eq!(place.columns(1000).all, [0..352, 352..704, 704..1000]);
        assert_eq!(place.columns(100).all, place.rows(100).all);
        let blocks = place.columns(96);
        assert_eq!(blocks.mapped(|cut| cut.is_multiple_of(32).then_some(cut / 32)).unwrap().all, [0..1, 1..2, 2..3]);
        assert_eq!(place.rows(100).mapped(|cut| cut.is_multiple_of(32).then_some(cut)), None);
    }
}
