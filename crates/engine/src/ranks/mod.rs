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
