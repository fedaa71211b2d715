//! A group of ranks behind the engine: rank 0 leads, the others follow its plans, and the front (the command that
//! started them) hands rank 0 one request after the other.

mod front;
mod layout;
mod leader;
mod member;
mod plan;
mod process;
mod protocol;

pub use front::{Front, Readiness, StartError};
pub use layout::{Layout, LayoutError, MOST_RANKS};
pub use member::RankError;
pub use process::{decline, model_bytes, run_rank};
pub use protocol::Job;

/// Reads a step plan as a rank does that got it from rank 0, tokens included. For fuzzing only.
#[doc(hidden)]
pub fn fuzz_plan(message: &[u8]) {
    const CONTEXT: usize = 1000;
    const STEP_TOKENS: usize = 16;
    if let Some(plan::Plan::Step(step)) = plan::decode(message, CONTEXT, STEP_TOKENS) {
        let mut tokens = Vec::new();
        step.tokens.copy_to(&mut tokens);
        assert!(tokens.len() <= STEP_TOKENS && step.first_position + tokens.len() <= CONTEXT);
        assert!(step.logits.rows(tokens.len()).end <= tokens.len());
    }
}
