//! What launchers put into the environment.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::mlx::{self, Hostfile};
use super::{Launch, Launcher, SecretSource, hostlist};
use crate::error::FabricError;

/// The most that is read of a file which the environment names.
pub const READ_BYTES_MAX: u64 = 4 << 20;
/// Where the ranks meet if nobody says where.
const DEFAULT_PORT: u16 = 29_400;
/// Ports that follow from a job's number lie from here on, below those that systems give out by themselves.
const JOB_PORTS: std::ops::Range<u64> = 20_000..30_000;

/// Variables and the files that they name.
pub struct Environment<'a> {
    variable: Box<LookUp<'a>>,
    file: Box<ReadFile<'a>>,
}

type LookUp<'a> = dyn Fn(&str) -> Option<String> + 'a;
type ReadFile<'a> = dyn Fn(&Path) -> std::io::Result<String> + 'a;

impl<'a> Environment<'a> {
    /// An environment in which `variable` looks variables up and `file` reads files.
    pub fn new(
        variable: impl Fn(&str) -> Option<String> + 'a,
        file: impl Fn(&Path) -> std::io::Result<String> + 'a,
    ) -> Self {
        Self { variable: Box::new(variable), file: Box::new(file) }
    }

    /// The environment of this process.
    pub fn of_this_process() -> Self {
        Self::new(|name| std::env::var(name).ok(), read_file)
    }

    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, FabricError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong =
            || FabricError::Invalid(format!("the variable {name} is {value:?}, which is no number that it can be"));
        value.parse().map(Some).map_err(|_| wrong())
    }

    /// A number that must be there; `whose` says on account of which variable.
    fn needed<T: std::str::FromStr>(&self, name: &str, whose: &str) -> Result<T, FabricError> {
        let missing = || FabricError::Invalid(format!("the variable {whose} is set, but {name} is not"));
        self.number(name)?.ok_or_else(missing)
    }

    fn read(&self, name: &str, path: &str) -> Result<String, FabricError> {
        let failed = |error| FabricError::io(format!("cannot read {path}, which the variable {name} names"), error);
        (self.file)(Path::new(path)).map_err(failed)
    }
}

fn read_file(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(READ_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > READ_BYTES_MAX {
        return Err(std::io::Error::other(format!("it is larger than {READ_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Asks for each launcher, the most particular first: those that run inside another one's allocation see its variables,
/// too.
pub(super) fn read(environment: &Environment<'_>) -> Result<Option<Launch>, FabricError> {
    if environment.has("RANK") && environment.has("WORLD_SIZE") {
        return torchrun(environment).map(Some);
    }
    if environment.has("MLX_RANK") {
        return mlx(environment).map(Some);
    }
    if environment.has("OMPI_COMM_WORLD_RANK") {
        return open_mpi(environment).map(Some);
    }
    if environment.has("PMI_RANK") && !slurm_says_the_same(environment)? {
        return hydra(environment).map(Some);
    }
    if environment.has("SLURM_PROCID") && (environment.has("SLURM_NTASKS") || environment.has("SLURM_STEP_NUM_TASKS")) {
        return slurm(environment).map(Some);
    }
    if environment.has("PMIX_RANK") {
        return pmix(environment).map(Some);
    }
    Ok(None)
}

/// What all launchers have in common.
fn launch(
    environment: &Environment<'_>,
    launcher: Launcher,
    (rank, size): (usize, usize),
    coordinator: (String, u16),
) -> Result<Launch, FabricError> {
    let port = environment.number::<u16>("ROPEWALK_PORT")?.unwrap_or(coordinator.1);
    if port == 0 {
        return Err(FabricError::Invalid(format!("{launcher} gives port 0 for the ranks to meet at")));
    }
    let secret = match (environment.get("ROPEWALK_SECRET_FILE"), environment.get("ROPEWALK_SECRET")) {
        (Some(path), _) => SecretSource::File(PathBuf::from(path)),
        (None, Some(text)) => SecretSource::Text(text),
        (None, None) => SecretSource::Nowhere,
    };
    Ok(Launch {
        launcher,
        rank,
        size,
        local_rank: None,
        coordinator: (coordinator.0, port),
        one_host: size == 1,
        devices: None,
        ring: false,
        job: String::new(),
        secret,
    })
}

fn torchrun(environment: &Environment<'_>) -> Result<Launch, FabricError> {
    let rank = environment.needed("RANK", "WORLD_SIZE")?;
    let size = environment.needed("WORLD_SIZE", "RANK")?;
    let local_size = environment.number::<usize>("LOCAL_WORLD_SIZE")?;
    let host = match environment.get("MASTER_ADDR") {
        Some(host) => host,
        None if size == 1 || local_size == Some(size) => "127.0.0.1".to_owned(),
        None => return Err(nowhere("RANK and WORLD_SIZE are set, but MASTER_ADDR is not")),
    };
    let mut port = environment.number("MASTER_PORT")?.unwrap_or(DEFAULT_PORT);
    // torchrun's agent itself listens at the port then.
    let agent = environment.get("TORCHELASTIC_USE_AGENT_STORE");
    if agent.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        port = if port == u16::MAX { port - 1 } else { port + 1 };
    }
    let mut launch = launch(environment, Launcher::Torchrun, (rank, size), (host, port))?;
    launch.local_rank = environment.number("LOCAL_RANK")?;
    launch.one_host |= local_size == Some(size);
    // An agent that starts its ranks again counts, so that the new ones do not meet the old.
    let run = environment.get("TORCHELASTIC_RUN_ID").unwrap_or_default();
    launch.job = format!("{run} {}", environment.get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default());
    Ok(launch)
}

fn mlx(environment: &Environment<'_>) -> Result<Launch, FabricError> {
    let rank = environment.needed("MLX_RANK", "MLX_RANK")?;
    let devices = match environment.get("MLX_IBV_DEVICES") {
        Some(path) => Some(mlx::parse_devices(&environment.read("MLX_IBV_DEVICES", &path)?)?),
        None => None,
    };
    let hostfile = match environment.get("MLX_HOSTFILE") {
        Some(path) => Some(Hostfile::parse(&environment.read("MLX_HOSTFILE", &path)?)?),
        None => None,
    };
    let sizes =
        [hostfile.as_ref().map(Hostfile::size), devices.as_ref().map(Vec::len), environment.number("MLX_WORLD_SIZE")?];
    let known: Vec<usize> = sizes.into_iter().flatten().collect();
    let size = match known[..] {
        [] => {
            let what = "MLX_RANK is set, but none of MLX_HOSTFILE, MLX_IBV_DEVICES and MLX_WORLD_SIZE, so that the \
                        number of ranks is not known";
            return Err(FabricError::Invalid(what.to_owned()));
        }
        [first, ..] if known.iter().all(|size| *size == first) => first,
        _ => return Err(FabricError::Invalid(format!("the variables of mlx.launch speak of {known:?} ranks"))),
    };
    let coordinator = mlx_coordinator(environment, hostfile.as_ref())?;
    let mut launch = launch(environment, Launcher::Mlx, (rank, size), coordinator)?;
    launch.devices = devices.or_else(|| hostfile.and_then(Hostfile::into_devices));
    launch.ring = environment.has("MLX_JACCL_RING");
    Ok(launch)
}

fn mlx_coordinator(environment: &Environment<'_>, hostfile: Option<&Hostfile>) -> Result<(String, u16), FabricError> {
    if let Some(address) = environment.get("MLX_JACCL_COORDINATOR") {
        return mlx::split_address(&address).ok_or_else(|| {
            FabricError::Invalid(format!("the variable MLX_JACCL_COORDINATOR is {address:?}; it must be ADDRESS:PORT"))
        });
    }
    if let Some(host) = environment.get("MASTER_ADDR") {
        return Ok((host, environment.number("MASTER_PORT")?.unwrap_or(DEFAULT_PORT)));
    }
    if let Some(host) = environment.get("NCCL_HOST_IP") {
        return Ok((host, environment.number("NCCL_PORT")?.unwrap_or(DEFAULT_PORT)));
    }
    let first = hostfile.and_then(|hostfile| hostfile.coordinator());
    first.ok_or_else(|| nowhere("MLX_RANK is set, but neither MLX_JACCL_COORDINATOR nor a host file with addresses"))
}

fn open_mpi(environment: &Environment<'_>) -> Result<Launch, FabricError> {
    let rank = environment.needed("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    let size = environment.needed("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")?;
    let one_host = environment.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(size);
    let job = ["OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"].into_iter().find_map(|name| environment.get(name));
    let job = job.unwrap_or_default();
    // Up to version 4, processes know where mpirun runs. Rank 0 mostly runs there as well; if not, it says so.
    let head = environment.get("OMPI_MCA_orte_hnp_uri").and_then(|uri| first_tcp_host(&uri));
    let host = match environment.get("MASTER_ADDR") {
        Some(host) => host,
        None if one_host => "127.0.0.1".to_owned(),
        None => head.ok_or_else(|| nowhere("Open MPI does not tell where rank 0 runs"))?,
    };
    let port = environment.number("MASTER_PORT")?.unwrap_or_else(|| port_of_job(&job));
    let mut launch = launch(environment, Launcher::OpenMpi, (rank, size), (host, port))?;
    launch.local_rank = environment.number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    launch.one_host |= one_host;
    launch.job = job;
    Ok(launch)
}

/// The host in a list such as `1596391424.0;tcp://10.0.0.1,192.168.0.1:57075;tcp6://[fd00::2]:45969`.
fn first_tcp_host(uri: &str) -> Option<String> {
    let addresses = uri.split(';').find_map(|part| part.strip_prefix("tcp://"))?;
    let first = addresses.rsplit_once(':')?.0.split(',').next()?;
    (!first.is_empty()).then(|| first.to_owned())
}

fn hydra(environment: &Environment<'_>) -> Result<Launch, FabricError> {
    let rank = environment.needed("PMI_RANK", "PMI_SIZE")?;
    let size = environment.needed("PMI_SIZE", "PMI_RANK")?;
    let one_host = environment.number("MPI_LOCALNRANKS")? == Some(size);
    let mut launch = launch(environment, Launcher::Hydra, (rank, size), by_master(environment, one_host, "mpiexec")?)?;
    launch.local_rank = environment.number("MPI_LOCALRANKID")?;
    launch.one_host |= one_host;
    Ok(launch)
}

fn pmix(environment: &Environment<'_>) -> Result<Launch, FabricError> {
    let rank = environment.needed("PMIX_RANK", "PMIX_NAMESPACE")?;
    // PMIx itself does not put the number of ranks into the environment.
    let size = environment.needed("WORLD_SIZE", "PMIX_RANK")?;
    let mut launch = launch(environment, Launcher::Pmix, (rank, size), by_master(environment, size == 1, "PMIx")?)?;
    launch.job = environment.get("PMIX_NAMESPACE").unwrap_or_default();
    Ok(launch)
}

/// Where the variables that any launcher can pass on say that rank 0 is.
fn by_master(environment: &Environment<'_>, one_host: bool, launcher: &str) -> Result<(String, u16), FabricError> {
    let host = match environment.get("MASTER_ADDR") {
        Some(host) => host,
        None if one_host => "127.0.0.1".to_owned(),
        None => return Err(nowhere(&format!("{launcher} does not tell where rank 0 runs"))),
    };
    Ok((host, environment.number("MASTER_PORT")?.unwrap_or(DEFAULT_PORT)))
}

/// Whether the variables of the process management interface come from `srun` itself.
fn slurm_says_the_same(environment: &Environment<'_>) -> Result<bool, FabricError> {
    let rank: (Option<usize>, Option<usize>) = (environment.number("PMI_RANK")?, environment.number("SLURM_PROCID")?);
    let size = environment.number::<usize>("PMI_SIZE")?;
    let tasks = environment.number("SLURM_STEP_NUM_TASKS")?.or(environment.number("SLURM_NTASKS")?);
    Ok(rank.0 == rank.1 && (size.is_none() || size == tasks))
}

fn slurm(environment: &Environment<'_>) -> Result<Launch, FabricError> {
    let rank = environment.needed("SLURM_PROCID", "SLURM_NTASKS")?;
    let size = match environment.number("SLURM_STEP_NUM_TASKS")? {
        Some(size) => size,
        None => environment.needed("SLURM_NTASKS", "SLURM_PROCID")?,
    };
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let nodes = match lists.into_iter().find_map(|name| environment.get(name)) {
        Some(list) => hostlist::expand(&list)?,
        None => Vec::new(),
    };
    let one_host = nodes.len() == 1 || size == 1;
    let id = |name| environment.get(name).unwrap_or_default();
    let job = format!("{} {}", id("SLURM_JOB_ID"), id("SLURM_STEP_ID"));
    // The first node of a step runs its first task.
    let host = match (environment.get("MASTER_ADDR"), nodes.into_iter().next()) {
        (Some(host), _) => host,
        (None, _) if one_host => "127.0.0.1".to_owned(),
        (None, Some(first)) => first,
        (None, None) => return Err(nowhere("SLURM_PROCID is set, but no variable lists the nodes")),
    };
    // Ports that Slurm has set aside for the step, if it was asked to.
    let reserved = environment.get("SLURM_STEP_RESV_PORTS");
    let reserved = reserved.and_then(|ports| ports.split(['-', ',']).next().and_then(|port| port.parse().ok()));
    let port = environment.number("MASTER_PORT")?.or(reserved).unwrap_or_else(|| port_of_job(&job));
    let mut launch = launch(environment, Launcher::Slurm, (rank, size), (host, port))?;
    launch.local_rank = environment.number("SLURM_LOCALID")?;
    launch.one_host |= one_host;
    launch.job = job;
    Ok(launch)
}

/// A port that is the same for all ranks of a job and most likely another one for other jobs.
fn port_of_job(job: &str) -> u16 {
    let sum = job.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let port = JOB_PORTS.start + sum % (JOB_PORTS.end - JOB_PORTS.start);
    // Within the range, which is one of ports.
    port as u16
}

fn nowhere(what: &str) -> FabricError {
    FabricError::Invalid(format!(
        "{what}; set MASTER_ADDR to the address of the machine that runs rank 0 (and MASTER_PORT, if {DEFAULT_PORT} is \
         taken there) for all ranks"
    ))
}
