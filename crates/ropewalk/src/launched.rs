//! Commands that mpirun, srun, torchrun or mlx.launch starts once for each rank: the one that is rank 0 does what it was
//! asked for, and the others work for it.

use anyhow::{Context, bail};
use fabric::launch::Launch;

use crate::options::{LinkOptions, RemoteOptions};

/// What stands in place of an address when the environment is to tell it.
const FROM_ENVIRONMENT: &str = "env";

/// The options of a command that a launcher decides.
pub(crate) struct Launchable<'a> {
    pub(crate) ranks: &'a mut Option<usize>,
    pub(crate) remote: &'a mut RemoteOptions,
    pub(crate) links: &'a LinkOptions,
}

/// A process that has to be a rank instead of doing what its command says.
pub(crate) struct Follower {
    pub(crate) launch: Launch,
    pub(crate) links: LinkOptions,
}

impl Launchable<'_> {
    /// Asks the environment, if the command says so, which rank this process is.
    pub(crate) fn ask_environment(self) -> anyhow::Result<Option<Follower>> {
        if self.remote.rendezvous != FROM_ENVIRONMENT {
            return Ok(None);
        }
        let launch = Launch::detect()?.context(
            "--rendezvous env: no launcher has started this command; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, \
             or start it with mpirun, srun, torchrun or mlx.launch",
        )?;
        let (launcher, size) = (launch.launcher, launch.size);
        if let Some(ranks) = self.ranks.filter(|&ranks| ranks != size) {
            bail!("--ranks {ranks} contradicts {launcher}, which has started {size}: leave it out");
        }
        if self.remote.remote_ranks > 0 {
            bail!("--remote-ranks has no meaning with --rendezvous env: {launcher} has started all {size} ranks");
        }
        if launch.rank > 0 {
            return Ok(Some(Follower { launch, links: self.links.clone() }));
        }
        *self.ranks = Some(size);
        self.remote.remote_ranks = size - 1;
        self.remote.launch = Some(launch);
        Ok(None)
    }
}
