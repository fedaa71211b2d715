//! How a model is laid out over ranks: stages (pipeline parallel) of several ranks each (tensor parallel).

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Most ranks of one group. Each pair of ranks has a link, and a desk has fewer machines than this.
pub const MOST_RANKS: usize = 64;

/// Ranks in stages. Rank `r` stands in stage `r / tensor`, at place `r % tensor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Ranks that share each layer.
    pub tensor: usize,
    /// Stages that follow each other.
    pub pipeline: usize,
    /// Share of each stage's work by place, in any unit.
    pub shares: Vec<f64>,
}

/// A layout that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The factors do not give the number of ranks.
    #[error("{ranks} ranks cannot be laid out as tensor parallel {tensor} times pipeline parallel {pipeline}")]
    Mismatch {
        /// Ranks asked for.
        ranks: usize,
        /// Ranks per stage asked for.
        tensor: usize,
        /// Stages asked for.
        pipeline: usize,
    },
    /// No ranks, or more than a group may have.
    #[error("{0} ranks were asked for; a group has between 1 and {MOST_RANKS}")]
    Count(usize),
    /// More stages than layers.
    #[error("{pipeline} stages cannot share {layers} layers: use at most {layers} with --pp")]
    TooManyStages {
        /// Stages asked for.
        pipeline: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Shares that do not fit the ranks of a stage.
    #[error("the shares {shares:?} do not fit {tensor} ranks per stage: give one positive number for each")]
    BadShares {
        /// What was given.
        shares: Vec<f64>,
        /// Ranks per stage.
        tensor: usize,
    },
}

impl Layout {
    /// The whole model on one rank.
    pub fn single() -> Self {
        Self { tensor: 1, pipeline: 1, shares: vec![1.0] }
    }

    /// Works out a layout from what the user said; what was not said follows from the rest.
    ///
    /// With only a number of ranks, all of them share each layer. One stream then runs on all ranks at once, while
    /// stages would take turns; README.md gives the measurements. Where a stage would get more ranks than the model
    /// has query heads, ranks without heads would idle in attention, so stages are made instead where that divides.
    ///
    /// # Errors
    /// When the numbers contradict each other or the model.
    pub fn choose(
        ranks: Option<usize>,
        tensor: Option<usize>,
        pipeline: Option<usize>,
        shares: Option<&[f64]>,
        (layers, heads): (usize, usize),
    ) -> Result<Self, LayoutError> {
        let implied = tensor.unwrap_or(1).saturating_mul(pipeline.unwrap_or(1));
        let ranks = ranks.unwrap_or(implied);
        if ranks == 0 || ranks > MOST_RANKS {
            return Err(LayoutError::Count(ranks));
        }
        let (tensor, pipeline) = match (tensor, pipeline) {
            (Some(tensor), Some(pipeline)) => (tensor, pipeline),
            (Some(tensor), None) => (tensor, ranks / tensor.max(1)),
            (None, Some(pipeline)) => (ranks / pipeline.max(1), pipeline),
            (None, None) => default_factors(ranks, heads),
        };
        if tensor.checked_mul(pipeline) != Some(ranks) {
            return Err(LayoutError::Mismatch { ranks, tensor, pipeline });
        }
        if pipeline > layers {
            return Err(LayoutError::TooManyStages { pipeline, layers });
        }
        let shares = shares.map_or_else(|| vec![1.0; tensor], <[f64]>::to_vec);
        if shares.len() != tensor || shares.iter().any(|share| !share.is_finite() || *share <= 0.0) {
            return Err(LayoutError::BadShares { shares, tensor });
        }
        Ok(Self { tensor, pipeline, shares })
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> usize {
        self.tensor * self.pipeline
    }

    /// The stage in which a rank stands.
    pub(crate) fn stage_of(&self, rank: usize) -> usize {
        rank / self.tensor
    }

    /// The ranks of a stage.
    pub(crate) fn stage(&self, stage: usize) -> Range<usize> {
        stage * self.tensor..(stage + 1) * self.tensor
    }

    /// The ranks of the last stage, which compute the logits.
    pub(crate) fn last_stage(&self) -> Range<usize> {
        self.stage(self.pipeline - 1)
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "tp{} x pp{}", self.tensor, self.pipeline)
    }
}

/// The most ranks per stage that divide the group and do not outnumber the heads.
fn default_factors(ranks: usize, heads: usize) -> (usize, usize) {
    let tensor = (1..=ranks).rev().find(|tensor| ranks.is_multiple_of(*tensor) && *tensor <= heads.max(1)).unwrap_or(1);
    (tensor, ranks / tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(ranks: Option<usize>, tensor: Option<usize>, pipeline: Option<usize>) -> Result<String, LayoutError> {
        Layout::choose(ranks, tensor, pipeline, None, (30, 9)).map(|layout| layout.to_string())
    }

    #[test]
    fn what_is_not_said_follows_from_the_rest() {
        assert_eq!(choose(None, None, None).unwrap(), "tp1 x pp1");
        assert_eq!(choose(Some(5), None, None).unwrap(), "tp5 x pp1");
        assert_eq!(choose(Some(6), Some(2), None).unwrap(), "tp2 x pp3");
        assert_eq!(choose(Some(6), None, Some(2)).unwrap(), "tp3 x pp2");
        assert_eq!(choose(None, Some(2), Some(2)).unwrap(), "tp2 x pp2");
        assert_eq!(choose(Some(12), None, None).unwrap(), "tp6 x pp2");
    }

    #[test]
    fn contradictions_are_errors() {
        let mismatch = Err(LayoutError::Mismatch { ranks: 4, tensor: 3, pipeline: 1 });
        assert_eq!(choose(Some(4), Some(3), None), mismatch);
        assert_eq!(choose(Some(0), None, None), Err(LayoutError::Count(0)));
        assert_eq!(choose(None, Some(usize::MAX), Some(2)), Err(LayoutError::Count(usize::MAX)));
        assert!(matches!(choose(Some(2), Some(0), None), Err(LayoutError::Mismatch { .. })));
        assert_eq!(choose(None, None, Some(31)), Err(LayoutError::TooManyStages { pipeline: 31, layers: 30 }));
        let shares = Layout::choose(Some(2), None, None, Some(&[1.0]), (30, 9));
        assert!(matches!(shares, Err(LayoutError::BadShares { .. })));
    }
}
