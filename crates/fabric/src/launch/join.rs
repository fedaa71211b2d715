//! Ranks that meet by themselves: rank 0 waits for the others, and for itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Launch;
use crate::error::FabricError;
use crate::rendezvous::{Control, JoinOptions, Joined, Rendezvous, RendezvousOptions, Stopper, join};

/// Joins the group that a launcher has started this process for. The rank number in `options` is replaced by the
/// launcher's. The job is empty, and the control channels end with rank 0.
///
/// # Errors
/// As [`join`], and when rank 0 cannot listen where the launcher says that it should.
pub fn join_launched(launch: &Launch, options: &JoinOptions) -> Result<Joined, FabricError> {
    let secret = launch.secret()?;
    let options = JoinOptions { rank: Some(launch.rank), ..options.clone() };
    let (host, port) = &launch.coordinator;
    if launch.rank > 0 {
        return join((host.as_str(), *port), &secret, &options);
    }
    let address = launch.listening_address()?;
    let rendezvous_options = RendezvousOptions { deadline: options.deadline, ..RendezvousOptions::default() };
    let rendezvous = Rendezvous::listen(address, &secret, launch.size, rendezvous_options).map_err(|error| {
        FabricError::Invalid(format!(
            "rank 0 cannot wait for the others at {address}: {error}; set ROPEWALK_PORT to a port that is free there, and \
             MASTER_ADDR if rank 0 runs on another machine than {host}, for all ranks"
        ))
    })?;
    let stopper = rendezvous.stopper();
    let host = host_others(rendezvous)?;
    // Through any address of its own, so that it lets others reach it at all of them.
    joined_or_why(join(address, &secret, &options), &stopper, host)
}

impl Launch {
    /// Where rank 0 has to listen so that the others find it.
    ///
    /// # Errors
    /// When the name of rank 0's machine stands for no address.
    pub fn listening_address(&self) -> Result<SocketAddr, FabricError> {
        let (host, port) = (self.coordinator.0.as_str(), self.coordinator.1);
        if self.stays_on_loopback() {
            let literal = host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback);
            return Ok(SocketAddr::new(literal.unwrap_or(Ipv4Addr::LOCALHOST.into()), port));
        }
        // A machine's own name may stand for any of its addresses, even for loopback: all that can be told from it is
        // what kind of address others will come to.
        let known = (host, port).to_socket_addrs();
        let mut known =
            known.map_err(|error| FabricError::io(format!("cannot find the address of {host:?}"), error))?;
        let only_v6 = known.all(|address| address.is_ipv6());
        let any = if only_v6 { std::net::Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Ok(SocketAddr::new(any, port))
    }
}

type Host = JoinHandle<Result<(), FabricError>>;

/// Gathers the group in a thread of its own, which holds the control channels until rank 0 ends.
fn host_others(mut rendezvous: Rendezvous) -> Result<Host, FabricError> {
    let gather = move || {
        let mut controls: Vec<Control> = rendezvous.gather(|_, _| Vec::new())?;
        if let Some(own) = controls.first_mut() {
            while own.recv(Duration::MAX).is_ok() {}
        }
        Ok(())
    };
    let thread = std::thread::Builder::new().name("rendezvous".to_owned()).spawn(gather);
    thread.map_err(|error| FabricError::io("cannot start a thread that waits for the ranks", error))
}

/// Rank 0's place in the group, or what kept the group from forming, which its own rendezvous may know better.
fn joined_or_why(joined: Result<Joined, FabricError>, stopper: &Stopper, host: Host) -> Result<Joined, FabricError> {
    joined.map_err(|error| {
        stopper.stop();
        match host.join() {
            Ok(Err(FabricError::Cancelled)) | Ok(Ok(())) | Err(_) => error,
            Ok(Err(better)) => better,
        }
    })
}
