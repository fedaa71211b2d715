//! Sampling and the step loop over a group of ranks.
#![forbid(unsafe_code)]

pub mod backend;
mod candidates;
mod details;
pub mod guide;
pub mod handle;
mod memory;
mod queue;
pub mod ranks;
pub mod request;
mod run;
mod sampler;
mod text;
mod validate;

pub use backend::{Backend, CacheUse, Flow, Observer, Outcome};
pub use details::ModelDetails;
pub use guide::{Constraint, ConstraintError};
pub use handle::{Canceller, Engine, Generation, Limits, ModelInfo, Status};
pub use memory::peak_resident_bytes;
pub use request::{
    Completion, Drafts, EngineError, Event, FinishReason, Pooling, RankStatistics, Request, Sampling, SubmitError,
    Timings, TokenInfo, TopToken,
};
