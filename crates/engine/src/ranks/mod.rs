//! A group of ranks behind the engine: rank 0 leads, the others follow its plans, and the front (the command that
//! started them) hands rank 0 the requests.

mod answers;
mod blocks;
mod desk;
mod drafting;
mod embedding;
mod front;
mod layout;
mod leader;
mod loading;
mod member;
mod pace;
mod plan;
mod process;
mod prompt_cache;
mod protocol;
mod schedule;
mod sequence;
#[cfg(test)]
mod simulation;
mod speculation;

pub use front::{Front, Readiness, StartError};
pub use layout::{Layout, LayoutError, MOST_RANKS};
pub use loading::Loading;
pub use member::RankError;
pub(crate) use plan::{CANDIDATES_MAX, Wanted};
pub use process::{decline, model_bytes, run_rank};
pub use protocol::{DraftFile, Job, PromptCache, Weights};

/// Reads a step plan as a rank does that got it from rank 0, tokens included. For fuzzing only.
#[doc(hidden)]
pub fn fuzz_plan(message: &[u8]) {
    let room = plan::Room { slots: 3, context: 1000, step_tokens: 16, kv_blocks: 64 };
    if let Some(plan::Plan::Step(plan)) = plan::decode(message, room) {
        let mut step = plan::Step::default();
        plan.copy_to(&mut step);
        let tokens = step.tokens.len();
        assert!((1..=room.step_tokens).contains(&tokens));
        assert_eq!(step.stretches.iter().map(|stretch| stretch.tokens).sum::<usize>(), tokens);
        for stretch in &step.stretches {
            assert!(stretch.slot < room.slots && stretch.first_position + stretch.tokens <= room.context);
        }
        for asked in step.asked() {
            assert!(asked.row < tokens && asked.best.is_none_or(|count| count <= plan::CANDIDATES_MAX));
        }
    }
}
