//! What a command has its ranks do.

use engine::ranks::Job;
use serde::{Deserialize, Serialize};

use crate::measure::{CollectivesJob, LinksJob};

/// The job that a rank gets when it joins a group.
#[derive(Serialize, Deserialize)]
pub(crate) enum RankJob {
    /// Run a model.
    Model(Box<Job>),
    /// Measure collectives.
    Collectives(CollectivesJob),
    /// Measure links.
    Links(LinksJob),
}
