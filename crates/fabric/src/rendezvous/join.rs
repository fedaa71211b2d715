//! A rank's side of the rendezvous.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::addresses::{Network, own_addresses};
use super::authentication::{Purpose, Terms, authenticate_dialer};
use super::control::{Control, Counterpart};
use super::formation::form;
use super::frame::{check_length, read_frame, read_json, write_frame, write_json};
use super::host::host_identity;
use super::party::{Party, Wishes};
use super::reception::prepare;
use super::reform::{Kept, clone_listeners, finish};
use super::wire::{Answer, Introduction, Welcome};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::fabric::Fabric;
use crate::link::Transport;
use crate::liveness::LIVENESS_DEADLINE;
use crate::relay::Relay;
use crate::secret::Secret;
use crate::timed::end_of;

/// Pauses between attempts to reach a rendezvous that is not there yet.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// How long one attempt to connect may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How a rank joins a group.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The rank number to ask for. `None` takes any that is free.
    pub rank: Option<usize>,
    /// What the coordinator is to know about this rank, at most [`MAX_FRAME`](super::MAX_FRAME) bytes.
    pub hello: Vec<u8>,
    /// How long to try: to reach the rendezvous, to wait for the other ranks, to connect with them.
    pub deadline: Duration,
    /// Whether the rendezvous is known to listen already. Then it has ended when nobody does, and there is no use in trying
    /// again.
    pub rendezvous_listens: bool,
    /// What the links are made of.
    pub transport: Transport,
    /// Where the other ranks are to reach this one: at those of this machine's addresses that are in one of these
    /// networks. If there are none, it is 127.0.0.1 alone when the rendezvous is on this machine's loopback, else all
    /// addresses of all interfaces. Addresses that lead nowhere do no harm: ranks try all of them at the same time.
    pub listen: Vec<Network>,
    /// How many connections a link over TCP has over each cable. More than one can make better use of fast cables. Of
    /// two ranks that differ, the one that wants more has its way.
    pub connections_per_cable: usize,
    /// Encrypts all connections that leave this machine, and refuses to be called without that by ranks on other machines.
    /// Links are then over TCP. All ranks should have the same.
    pub encrypt: bool,
    /// Listens here for ranks that do not reach the rendezvous themselves, and passes them on to it. Those ranks take this
    /// address for the rendezvous; they authenticate as if it were.
    pub forward: Option<SocketAddr>,
    /// The fabric's deadline for waits; see [`Fabric::set_deadline`].
    pub wait_deadline: Duration,
    /// A rank from which nothing is heard for this long is lost, whether it computes or waits: a sign of life comes
    /// every eighth of it. The same for all ranks, at best.
    pub liveness_deadline: Duration,
    /// How long to try which way of reducing is fastest at which size, once the group has formed; see [`Fabric::tune`].
    /// All ranks must agree whether they do so. Without it, what is usual is taken.
    pub tuning: Option<Duration>,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            rank: None,
            hello: Vec::new(),
            deadline: Duration::from_secs(60),
            rendezvous_listens: false,
            transport: Transport::Auto,
            listen: Vec::new(),
            connections_per_cable: 1,
            encrypt: false,
            forward: None,
            wait_deadline: Duration::from_secs(30),
            liveness_deadline: LIVENESS_DEADLINE,
            tuning: None,
        }
    }
}

/// A place in a group.
#[derive(Debug)]
pub struct Joined {
    /// This rank's number.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// What the coordinator wants this rank to do.
    pub job: Vec<u8>,
    /// The channel to the coordinator.
    pub control: Control,
    /// The links to the other ranks.
    pub fabric: Fabric,
}

/// Joins the group that gathers at `address`.
///
/// # Errors
/// When the rendezvous cannot be reached in time, refuses this rank (wrong secret, a rank number that is taken), or a
/// link to another rank cannot be made. The coordinator is told about the latter.
pub fn join(address: impl ToSocketAddrs, secret: &Secret, options: &JoinOptions) -> Result<Joined, FabricError> {
    check_length("a hello", options.hello.len())?;
    let by = end_of(options.deadline);
    let terms = Terms { secret, purpose: Purpose::Control, context: &[] };
    let targets: Vec<SocketAddr> = address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let forwarder = options.forward.map(|door| forward(door, &targets)).transpose()?;
    let stream = reach(&address, &terms, options)?;
    let towards = stream.local_addr().map_err(|error| FabricError::io("the rendezvous vanished", error))?.ip();
    let everywhere = targets.iter().any(|target| target.ip().is_unspecified());
    let own = own_addresses(&options.listen, towards, everywhere)?;
    let listeners = bind_listeners(&own)?;
    let doors = bind_listeners(&own)?;
    let addresses = |of: &[TcpListener]| of.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let lost = |cause| FabricError::CoordinatorLost { cause };
    let introduction = Introduction {
        rank: options.rank,
        host: host_identity()?,
        listeners: addresses(&listeners),
        doors: addresses(&doors),
    };
    write_json(&stream, &introduction, by).map_err(lost)?;
    write_frame(&stream, &options.hello, by).map_err(lost)?;
    let welcome: Welcome = match read_json(&stream, by).map_err(lost)? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused { why } => return Err(FabricError::Refused { whom: stream.whom(), why }),
    };
    let job = read_frame(&stream, by).map_err(lost)?;
    let (rank, size, generation) = (welcome.rank, welcome.ranks.len(), welcome.generation);
    if rank >= size {
        return Err(lost(Cause::corrupt(format!("it made this rank {rank} of {size}"))));
    }
    let wishes =
        Wishes { transport: options.transport, connections: options.connections_per_cable, encrypt: options.encrypt };
    let kept = Kept {
        secret: secret.clone(),
        session: welcome.session.clone().into_bytes(),
        ranks: welcome.ranks.clone(),
        own: own.clone(),
        listeners: clone_listeners(&listeners)?,
        doors,
        wishes,
        wait_deadline: options.wait_deadline,
        liveness_deadline: options.liveness_deadline,
    };
    let party = Party::new(secret.clone(), welcome, wishes, own);
    let mut fabric = finish(form(party, &stream, listeners, by)?, rank, generation, kept)?;
    fabric.keep(forwarder.into_iter().collect());
    if let Some(budget) = options.tuning {
        fabric.tune(budget)?;
    }
    let control = Control::new(stream, Counterpart::Coordinator);
    Ok(Joined { rank, size, job, control, fabric })
}

/// Lets others reach the rendezvous through this rank.
fn forward(door: SocketAddr, targets: &[SocketAddr]) -> Result<Relay, FabricError> {
    let listener = TcpListener::bind(door);
    let failed = |error| FabricError::io(format!("cannot listen at {door} for ranks behind this one"), error);
    Relay::forward(listener.map_err(failed)?, targets.to_vec())
}

/// Reaches the rendezvous, which may start later than this rank, or be too busy with others for a while.
fn reach(address: &impl ToSocketAddrs, terms: &Terms<'_>, options: &JoinOptions) -> Result<Channel, FabricError> {
    let patience = options.deadline;
    let by = end_of(patience);
    let [mut pause, pause_max] = RETRY_PAUSES;
    loop {
        let attempt = match connect_once(address, by) {
            Ok(stream) => {
                prepare(&stream)?;
                let near = stream.peer_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
                authenticate_dialer(stream, terms, options.encrypt && !near, by)
            }
            Err(error) => Err(FabricError::io(format!("cannot reach the rendezvous within {patience:?}"), error)),
        };
        match attempt {
            Err(error) if options.rendezvous_listens && nobody_listens(&error) => return Err(error),
            Err(error) if is_momentary(&error) && end_of(pause) < by => std::thread::sleep(pause),
            outcome => return outcome,
        }
        pause = (pause * 2).min(pause_max);
    }
}

fn nobody_listens(error: &FabricError) -> bool {
    matches!(error, FabricError::Io { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
}

/// Whether it makes sense to try again.
fn is_momentary(error: &FabricError) -> bool {
    match error {
        FabricError::Io { source, .. } => source.kind() != ErrorKind::InvalidInput,
        FabricError::Handshake { cause, .. } => matches!(cause, Cause::Closed | Cause::Io(_)),
        _ => false,
    }
}

fn connect_once(address: &impl ToSocketAddrs, by: Instant) -> Result<TcpStream, std::io::Error> {
    let mut last = std::io::Error::new(ErrorKind::InvalidInput, "the address stands for no machine");
    for address in address.to_socket_addrs()? {
        let patience = by.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), CONNECT_PATIENCE);
        match TcpStream::connect_timeout(&address, patience) {
            // A connection to a port of one's own range can meet itself when nobody listens there.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                last = ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens at all addresses where this rank is to be reached.
fn bind_listeners(own: &[Network]) -> Result<Vec<TcpListener>, FabricError> {
    let bind = |network: &Network| {
        let address = SocketAddr::new(network.address(), 0);
        let failed = |error| FabricError::io(format!("cannot listen at {address} for the other ranks"), error);
        TcpListener::bind(address).map_err(failed)
    };
    let (bound, failed): (Vec<_>, Vec<_>) = own.iter().map(bind).partition(Result::is_ok);
    let bound: Vec<TcpListener> = bound.into_iter().flatten().collect();
    match failed.into_iter().find_map(Result::err) {
        // An address can vanish, or not be ready yet; others do as well.
        Some(error) if bound.is_empty() => Err(error),
        _ => Ok(bound),
    }
}
