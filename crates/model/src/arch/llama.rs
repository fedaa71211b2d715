//! Llama (Touvron et al., 2023; Llama 3: Meta, 2024), and Mistral, Yi, SmolLM and others of the same build.

use kernels::RopeLayout;

use super::{Blueprint, Hyperparameters, uniform};
use crate::ModelError;

/// Converters permute the rows of Q and K so that rotation works on neighbouring pairs. Early Mistral models look back
/// over a sliding window.
pub(super) fn blueprint(keys: &Hyperparameters<'_>) -> Result<Blueprint, ModelError> {
    uniform(keys, RopeLayout::Interleaved, false, keys.window()?)
}
