//! `ropewalk rank`: one rank of a group that another command started.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use engine::ranks::{Job, decline, model_bytes, run_rank};
use fabric::{JoinOptions, Joined, Secret, join};
use model::Gguf;

use crate::job::RankJob;
use crate::launched::Follower;
use crate::measure::{measure_collectives, measure_links};
use crate::models;
use crate::options::{LinkOptions, MODEL_HELP};

/// How long a rank waits for another one that computes. A chunk of a large model may take minutes on a slow machine; a
/// rank whose process is gone is noticed at once, by its connection.
const STEP_PATIENCE: Duration = Duration::from_secs(300);

/// How long a rank that a launcher has started waits for rank 0 and the others.
const LAUNCH_PATIENCE: Duration = Duration::from_secs(600);

/// Longest secret that is read from standard input.
const SECRET_BYTES_MAX: u64 = 4096;

/// Be one rank of a group; started by the other commands, or by hand on another machine
#[derive(Args)]
#[command(after_help = "Example, on a second machine:
  ropewalk rank --rendezvous 192.168.1.10:7000 --secret-file secret
while on the first machine runs
  ropewalk chat smollm2 --ranks 2 --remote-ranks 1 --rendezvous 192.168.1.10:7000 --secret-file secret")]
pub(crate) struct Arguments {
    /// Where the command that started the group waits
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: String,
    /// File with the secret that all ranks share
    #[arg(long, value_name = "FILE", required_unless_present = "secret_stdin")]
    secret_file: Option<PathBuf>,
    /// Read the secret from standard input
    #[arg(long, hide = true, conflicts_with = "secret_file")]
    secret_stdin: bool,
    /// The number to take [default: any that is free]
    #[arg(long, value_name = "N")]
    rank: Option<usize>,
    #[arg(long, value_name = "MODEL", help = format!("Where this machine has the model, if not under the same name: {MODEL_HELP}"))]
    model: Option<String>,
    #[command(flatten)]
    links: LinkOptions,
    /// Listen here for ranks that do not reach the rendezvous themselves, and pass them on to it
    #[arg(long, value_name = "ADDRESS:PORT")]
    forward: Option<SocketAddr>,
    /// How long to wait for the rendezvous and the other ranks, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let secret = match &arguments.secret_file {
        Some(path) => Secret::from_file(path)?,
        None => secret_from_stdin()?,
    };
    let options = JoinOptions {
        rank: arguments.rank,
        deadline: Duration::from_secs(arguments.timeout),
        forward: arguments.forward,
        // Whoever hands a rank its secret that way has started it, and listened before.
        rendezvous_listens: arguments.secret_stdin,
        wait_deadline: STEP_PATIENCE,
        ..arguments.links.join_options()
    };
    if arguments.secret_file.is_some() {
        eprintln!("joining the group at {}", arguments.rendezvous);
    }
    let joined = join(arguments.rendezvous.as_str(), &secret, &options)
        .with_context(|| format!("cannot join the group at {}", arguments.rendezvous))?;
    work(joined, arguments.model.as_deref())
}

/// Be a rank that a launcher has started.
pub(crate) fn follow(follower: &Follower) -> anyhow::Result<()> {
    let Follower { launch, links } = follower;
    let (host, port) = &launch.coordinator;
    let options = JoinOptions {
        rank: Some(launch.rank),
        deadline: LAUNCH_PATIENCE,
        wait_deadline: STEP_PATIENCE,
        ..links.join_options()
    };
    let joined = join((host.as_str(), *port), &launch.secret()?, &options)
        .with_context(|| format!("rank {} cannot join the group at {host}:{port}", launch.rank))?;
    work(joined, None)
}

/// Does what the group is for. `model` is where this machine has the model, if it was told.
fn work(joined: Joined, model: Option<&str>) -> anyhow::Result<()> {
    let job = serde_json::from_slice(&joined.job).context("the group runs another version of ropewalk")?;
    let rank = joined.rank;
    match job {
        RankJob::Model(job) => run_model(model, joined, *job),
        RankJob::Collectives(job) => measure_collectives(joined, &job),
        RankJob::Links(job) => measure_links(joined, &job),
    }
    .with_context(|| format!("rank {rank}"))
}

fn run_model(model: Option<&str>, joined: Joined, mut job: Job) -> anyhow::Result<()> {
    let found = model_path(model, (&job.model, &job.path, job.model_bytes)).and_then(|path| {
        if let Some(draft) = job.draft_model.as_mut().filter(|_| joined.rank == 0) {
            let found = model_path(None, (&draft.model, &draft.path, draft.model_bytes))?;
            draft.path = found.display().to_string();
        }
        Ok(path)
    });
    let path = match found {
        Ok(path) => path,
        Err(error) => {
            decline(joined, &format!("{error:#}"));
            return Err(error);
        }
    };
    Ok(run_rank(joined, job, &path)?)
}

fn secret_from_stdin() -> anyhow::Result<Secret> {
    let mut bytes = Vec::new();
    std::io::stdin().take(SECRET_BYTES_MAX).read_to_end(&mut bytes).context("cannot read the secret")?;
    Ok(Secret::from_bytes(bytes.trim_ascii())?)
}

/// Where this machine has the model that the front knows by that name, at that path and with so many bytes: as told, else where
/// the front has it, else by the name.
fn model_path(model: Option<&str>, (named, path, bytes): (&str, &str, u64)) -> anyhow::Result<PathBuf> {
    if let Some(model) = model {
        return Ok(models::resolve(model, false)?.path);
    }
    let same = |path: &Path| Gguf::open(path).is_ok_and(|file| model_bytes(&file) == bytes);
    if same(Path::new(path)) {
        return Ok(PathBuf::from(path));
    }
    let resolved = models::resolve(named, false);
    Ok(resolved.with_context(|| format!("this machine does not have {named}: name it with --model"))?.path)
}
