//! Sampling and the step loop over a group of ranks.
#![forbid(unsafe_code)]

pub mod backend;
pub mod handle;
pub mod request;

pub use backend::{Backend, Flow, Observer, Outcome};
pub use handle::{Engine, Generation, Limits, ModelInfo, Status};
pub use request::{
    Completion, EngineError, Event, FinishReason, RankStatistics, Request, Sampling, SubmitError, Timings, TokenInfo, TopToken,
};
