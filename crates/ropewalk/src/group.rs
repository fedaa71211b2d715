//! A group of ranks coming together: child processes of this command, and ranks started by hand on other machines.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use fabric::{Control, Rendezvous, RendezvousOptions, Secret};

use crate::options::{LinkOptions, RemoteOptions};
use crate::ranks::Children;

/// How long the ranks of this machine may take to find each other.
const GATHER_LOCAL: Duration = Duration::from_secs(30);
/// How long a person may take to start ranks on other machines.
const GATHER_REMOTE: Duration = Duration::from_secs(600);

/// Ranks that are on their way.
pub(crate) struct Gathering {
    rendezvous: Rendezvous,
    children: Children,
}

impl Gathering {
    /// Starts `size` ranks, less those that others are to start elsewhere.
    pub(crate) fn start(size: usize, remote: &RemoteOptions, links: &LinkOptions) -> anyhow::Result<Self> {
        let local_ranks = local_ranks(size, remote)?;
        let (address, secret) = match &remote.launch {
            Some(launch) => (launch.listening_address()?.to_string(), launch.secret()?),
            None => (remote.rendezvous.clone(), secret(remote.secret_file.as_deref())?),
        };
        let options = RendezvousOptions {
            deadline: if remote.remote_ranks > 0 { GATHER_REMOTE } else { GATHER_LOCAL },
            encrypt: links.encrypt,
            ..RendezvousOptions::default()
        };
        let rendezvous = Rendezvous::listen(address.as_str(), &secret, size, options)
            .with_context(|| format!("cannot wait for ranks at {address}"))?;
        let children = Children::spawn(local_ranks, rendezvous.address(), &secret, links)?;
        if remote.remote_ranks > 0 && remote.launch.is_none() {
            announce(remote, links, &rendezvous);
        }
        Ok(Self { rendezvous, children })
    }

    /// Waits until all have come and have connected with each other, and gives each the job.
    pub(crate) fn finish(mut self, job: &[u8]) -> anyhow::Result<(Vec<Control>, Children)> {
        let stopper = self.rendezvous.stopper();
        let gather = || self.rendezvous.gather(|_, _| job.to_vec());
        let (gathered, ended) = self.children.watch_during(|| stopper.stop(), gather);
        match (gathered, ended) {
            (Ok(controls), _) => Ok((controls, self.children)),
            (Err(_), Some(ended)) => bail!("{ended}; its own message stands above"),
            (Err(error), None) => Err(anyhow!(error).context("the ranks did not come together")),
        }
    }
}

/// How many of `size` ranks run on this machine.
pub(crate) fn local_ranks(size: usize, remote: &RemoteOptions) -> anyhow::Result<usize> {
    (size.checked_sub(remote.remote_ranks))
        .with_context(|| format!("--remote-ranks asks for more than the {size} ranks there are"))
}

/// The secret of the group: a fresh one, unless ranks on other machines need to know it.
fn secret(file: Option<&Path>) -> anyhow::Result<Secret> {
    let Some(path) = file else { return Ok(Secret::random()?) };
    if path.exists() {
        return Ok(Secret::from_file(path)?);
    }
    let secret = Secret::random()?;
    secret.write_to_file(path)?;
    eprintln!("made a secret in {}: copy it to the other machines", path.display());
    Ok(secret)
}

fn announce(remote: &RemoteOptions, links: &LinkOptions, rendezvous: &Rendezvous) {
    let file = remote.secret_file.as_deref().unwrap_or(Path::new("FILE")).display();
    let address = rendezvous.address();
    let ranks = match remote.remote_ranks {
        1 => "1 rank".to_owned(),
        count => format!("{count} ranks"),
    };
    let encrypt = if links.encrypt { " --encrypt" } else { "" };
    eprintln!("waiting for {ranks}; on each of the other machines run");
    if address.ip().is_unspecified() || address.ip().is_loopback() {
        let port = address.port();
        eprintln!("  ropewalk rank --rendezvous THIS_MACHINE:{port} --secret-file {file}{encrypt}");
        if address.ip().is_loopback() {
            eprintln!("{address} is reached from this machine only: give --rendezvous an address that others reach");
        }
    } else {
        eprintln!("  ropewalk rank --rendezvous {address} --secret-file {file}{encrypt}");
    }
}
