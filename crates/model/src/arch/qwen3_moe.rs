//! Qwen 3, mixtures of experts (Qwen team, 2025): Qwen 3's attention, and in each layer a mixture.

use kernels::RopeLayout;

use super::{Blueprint, Hyperparameters, uniform};
use crate::ModelError;

pub(super) fn blueprint(keys: &Hyperparameters<'_>) -> Result<Blueprint, ModelError> {
    uniform(keys, RopeLayout::Halves, true, None)
}
