//! Groups whose ranks something else has started: torchrun, Slurm, an MPI launcher, or `mlx.launch`.
//!
//! Such launchers tell each process by its environment which rank it is, of how many, and mostly where rank 0 is. That is
//! enough to meet: rank 0 is the coordinator as well. What they do not share is a secret. It comes from
//! `ROPEWALK_SECRET_FILE` or `ROPEWALK_SECRET`, which most launchers can pass on. Without either, ranks on one machine use
//! one that follows from the job's name and so keeps jobs apart, but not other users of that machine; ranks on several
//! machines refuse to start.
//!
//! `MASTER_ADDR` and `MASTER_PORT` say where rank 0 is under any launcher that does not know it. `ROPEWALK_PORT` wins over
//! any port.

mod environment;
mod hostlist;
mod join;
mod mlx;

use std::fmt;
use std::path::Path;

pub use self::environment::{Environment, READ_BYTES_MAX};
pub use self::hostlist::{HOSTS_MAX, expand as expand_hostlist};
pub use self::join::join_launched;
pub use self::mlx::{Devices, Hostfile};
use crate::error::FabricError;
use crate::secret::Secret;

/// What has started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// torchrun, or anything else that sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.
    Torchrun,
    /// `mlx.launch`.
    Mlx,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI.
    Hydra,
    /// A launcher that only the process management interface PMIx shows.
    Pmix,
    /// Slurm's `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Mlx => "mlx.launch",
            Self::OpenMpi => "Open MPI",
            Self::Hydra => "mpiexec (Hydra)",
            Self::Pmix => "PMIx",
            Self::Slurm => "Slurm",
        })
    }
}

/// What a process knows about the group that it has been started for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// What has started it.
    pub launcher: Launcher,
    /// Its number.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Its number among the ranks of its machine, if known.
    pub local_rank: Option<usize>,
    /// The name or address of the machine of rank 0, and the port at which the ranks meet there.
    pub coordinator: (String, u16),
    /// Whether all ranks are known to be on one machine.
    pub one_host: bool,
    /// The RDMA devices that lead from each rank to each other, if the launcher has been told.
    pub devices: Option<Devices>,
    /// Whether the launcher says that the ranks form a ring of cables.
    pub ring: bool,
    /// Names the job, as far as it has a name.
    job: String,
    secret: SecretSource,
}

/// Where the secret comes from.
#[derive(Clone, PartialEq, Eq)]
enum SecretSource {
    Text(String),
    File(std::path::PathBuf),
    /// None is shared.
    Nowhere,
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Nowhere => f.write_str("Nowhere"),
        }
    }
}

impl Launch {
    /// What the environment of this process tells; `None` when no launcher has started it.
    ///
    /// # Errors
    /// [`FabricError::Invalid`] when what it tells is incomplete or makes no sense.
    pub fn detect() -> Result<Option<Self>, FabricError> {
        Self::from_environment(&Environment::of_this_process())
    }

    /// As [`Launch::detect`], for any environment. Depends on nothing else.
    ///
    /// # Errors
    /// As there.
    pub fn from_environment(environment: &Environment<'_>) -> Result<Option<Self>, FabricError> {
        let launch = environment::read(environment)?;
        if let Some(Self { rank, size, launcher, .. }) = &launch
            && (rank >= size || *size > crate::MAX_RANKS)
        {
            let limit = crate::MAX_RANKS;
            return Err(FabricError::Invalid(format!(
                "{launcher} says that this is rank {rank} of {size}; up to {limit} ranks are possible, counted from 0"
            )));
        }
        Ok(launch)
    }

    /// The secret that the ranks share.
    ///
    /// # Errors
    /// When it cannot be read; and when there is none and the ranks are not known to be on one machine.
    pub fn secret(&self) -> Result<Secret, FabricError> {
        match &self.secret {
            SecretSource::Text(text) => Secret::from_bytes(text.trim().as_bytes()),
            SecretSource::File(path) => Secret::from_file(Path::new(path)),
            SecretSource::Nowhere if self.stays_on_loopback() => {
                let (host, port) = &self.coordinator;
                let name = format!("ropewalk job {} {} {} {host}:{port}", self.launcher, self.job, self.size);
                Secret::from_bytes(name.as_bytes())
            }
            SecretSource::Nowhere => Err(FabricError::Invalid(format!(
                "{} shares no secret between ranks on several machines; set ROPEWALK_SECRET_FILE to a file that all of \
                 them can read, or ROPEWALK_SECRET, for all ranks",
                self.launcher
            ))),
        }
    }

    /// Whether nothing that the ranks say to each other leaves the machine.
    fn stays_on_loopback(&self) -> bool {
        let host = self.coordinator.0.as_str();
        let loopback = host.parse::<std::net::IpAddr>().map_or(host == "localhost", |address| address.is_loopback());
        self.size == 1 || loopback
    }
}
