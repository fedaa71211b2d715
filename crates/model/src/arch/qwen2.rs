//! Qwen 2 and 2.5 (Qwen team, 2024): Llama's build with biases on Q, K and V.

use kernels::RopeLayout;

use super::{Blueprint, Hyperparameters, uniform};
use crate::ModelError;

/// The biases need no mention: attention adds those that the checkpoint carries.
pub(super) fn blueprint(keys: &Hyperparameters<'_>) -> Result<Blueprint, ModelError> {
    uniform(keys, RopeLayout::Halves, false, None)
}
