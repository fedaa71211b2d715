//! Qwen 3, dense (Qwen team, 2025): queries and keys are normed per head, biases are gone.

use kernels::RopeLayout;

use super::{Blueprint, Hyperparameters, uniform};
use crate::ModelError;

pub(super) fn blueprint(keys: &Hyperparameters<'_>) -> Result<Blueprint, ModelError> {
    uniform(keys, RopeLayout::Halves, true, None)
}
