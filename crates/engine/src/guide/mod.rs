//! Constraints on what a model may say: JSON by a schema, regular expressions, grammars.
//!
//! The front builds a [`Constraint`], which checks it, so that a bad one is refused before anything is queued. It travels to
//! rank 0 inside the request. There a [`Guide`] follows the tokens of one sequence and tells which may come next: the tokens
//! that are allowed at the next step are worked out on another thread while the model computes that step.

mod compile;
mod constraint;
mod follow;
mod gbnf;
mod schema;
mod structure;
mod vocabulary;

pub use constraint::{Constraint, ConstraintError};
pub(crate) use follow::{Guide, Guides, Verdict};
pub use structure::{Lead, Structure, Tag};
