//! A rank's side of the rendezvous.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::authentication::{Purpose, Terms, authenticate_dialer};
use super::control::{Control, Counterpart};
use super::frame::{check_length, read_frame, read_json, write_frame, write_json};
use super::host::host_identity;
use super::pairing::{self, Bond, Caller, Party};
use super::reception::{Reception, prepare};
use super::stripes::Stripes;
use super::wire::{Answer, Go, Introduction, Report, Welcome};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::fabric::Fabric;
use crate::link::Transport;
use crate::liveness::LIVENESS_DEADLINE;
use crate::secret::Secret;
use crate::timed::end_of;
use crate::topology::{Edge, Topology};

/// Pauses between attempts to reach a rendezvous that is not there yet.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// How often a rank that waits for others looks whether the coordinator is still there.
const GLANCE: Duration = Duration::from_millis(50);
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
    /// What the links are made of.
    pub transport: Transport,
    /// Where the other ranks are to reach this one. `None` takes 127.0.0.1 when the rendezvous is on this machine's
    /// loopback, else the address that this machine has towards the rendezvous.
    pub listen: Option<IpAddr>,
    /// The fabric's deadline for waits; see [`Fabric::set_deadline`].
    pub wait_deadline: Duration,
    /// A rank from which nothing is heard for this long is lost, whether it computes or waits: a sign of life comes
    /// every eighth of it. The same for all ranks, at best.
    pub liveness_deadline: Duration,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            rank: None,
            hello: Vec::new(),
            deadline: Duration::from_secs(60),
            transport: Transport::Auto,
            listen: None,
            wait_deadline: Duration::from_secs(30),
            liveness_deadline: LIVENESS_DEADLINE,
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
    let stream = reach(&address, &terms, options.deadline)?;
    let listener = bind_listener(&stream, options.listen)?;
    let lost = |cause| FabricError::CoordinatorLost { cause };
    let introduction = Introduction {
        rank: options.rank,
        host: host_identity()?,
        listener: listener.local_addr().map_err(|error| FabricError::io("cannot listen for other ranks", error))?,
    };
    write_json(&stream, &introduction, by).map_err(lost)?;
    write_frame(&stream, &options.hello, by).map_err(lost)?;
    let welcome = match read_json(&stream, by).map_err(lost)? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused { why } => return Err(FabricError::Refused { whom: stream.whom(), why }),
    };
    let job = read_frame(&stream, by).map_err(lost)?;
    let size = welcome.ranks.len();
    if welcome.rank >= size {
        return Err(lost(Cause::corrupt(format!("it made this rank {} of {size}", welcome.rank))));
    }
    let party = Party::new(secret.clone(), &welcome, options.transport);
    let links = connect_ranks(&party, &welcome, &stream, listener, by);
    let report = match &links {
        Ok(_) => Report::Up,
        Err(error) => Report::Failed { why: error.to_string(), follows: follows_another(error) },
    };
    let reported = write_json(&stream, &report, by).map_err(lost);
    let links = links?;
    reported?;
    // A group in which another rank fails never starts.
    let Go = read_json(&stream, by).map_err(lost)?;
    let (links, lifelines) = links.into_iter().map(|bond| bond.map(|it| (it.link, it.lifeline)).unzip()).unzip();
    let topology = topology(&welcome)?;
    let (rank, generation) = (welcome.rank, welcome.generation);
    let mut fabric = Fabric::from_links(rank, generation, links, lifelines, topology, options.liveness_deadline)?;
    fabric.set_deadline(options.wait_deadline);
    let control = Control::new(stream, Counterpart::Coordinator);
    Ok(Joined { rank: welcome.rank, size, job, control, fabric })
}

/// Whether an error is what a rank sees when another one has given up.
fn follows_another(error: &FabricError) -> bool {
    match error {
        FabricError::PeerLost { cause, .. } | FabricError::Handshake { cause, .. } => {
            matches!(cause, Cause::Closed | Cause::Io(_))
        }
        FabricError::Io { .. } => true,
        _ => false,
    }
}

/// Reaches the rendezvous, which may start later than this rank, or be too busy with others for a while.
fn reach(address: &impl ToSocketAddrs, terms: &Terms<'_>, patience: Duration) -> Result<Channel, FabricError> {
    let by = end_of(patience);
    let [mut pause, pause_max] = RETRY_PAUSES;
    loop {
        let attempt = match connect_once(address, by) {
            Ok(stream) => {
                prepare(&stream)?;
                authenticate_dialer(&stream, terms, by).map(|()| Channel::plain(stream))
            }
            Err(error) => Err(FabricError::io(format!("cannot reach the rendezvous within {patience:?}"), error)),
        };
        match attempt {
            Err(error) if is_momentary(&error) && end_of(pause) < by => std::thread::sleep(pause),
            outcome => return outcome,
        }
        pause = (pause * 2).min(pause_max);
    }
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

fn bind_listener(stream: &Channel, wanted: Option<IpAddr>) -> Result<TcpListener, FabricError> {
    let bind = || {
        let address = match wanted {
            Some(address) => address,
            None => stream.local_addr()?.ip(),
        };
        TcpListener::bind(SocketAddr::new(address, 0))
    };
    bind().map_err(|error| FabricError::io("cannot listen for the other ranks", error))
}

/// Makes the links to all other ranks: dials the lower ones, then lets the higher ones dial.
///
/// Rank 0 dials nobody and so lets others in at once; rank 1 is let in by rank 0 and then lets others in, and so on:
/// nobody waits in a circle.
fn connect_ranks(
    party: &Party,
    welcome: &Welcome,
    coordinator: &Channel,
    listener: TcpListener,
    by: Instant,
) -> Result<Vec<Option<Bond>>, FabricError> {
    let mut links: Vec<Option<Bond>> = Vec::with_capacity(welcome.ranks.len());
    for (rank, peer) in welcome.ranks[..welcome.rank].iter().enumerate() {
        let address = peer.listener;
        let connect = |_index| {
            let patience = by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let stream = TcpStream::connect_timeout(&address, patience)
                .map_err(|error| FabricError::io(format!("cannot reach rank {rank} at {address}"), error))?;
            prepare(&stream)?;
            Ok(stream)
        };
        links.push(Some(pairing::dial(party, rank, connect(0)?, &connect, by)?));
    }
    links.push(None);
    links.extend(receive_callers(party, welcome, coordinator, listener, by)?.into_values().map(Some));
    Ok(links)
}

/// Who reaches whom: all others, as all links are there.
fn topology(welcome: &Welcome) -> Result<Topology, FabricError> {
    let size = welcome.ranks.len();
    let number = |host: &String| welcome.ranks.iter().position(|other| other.host == *host).unwrap_or(size);
    let hosts = welcome.ranks.iter().map(|rank| number(&rank.host)).collect::<Vec<_>>();
    let pairs = (0..size).flat_map(|a| (0..a).map(move |b| Edge::new(a, b))).collect::<Vec<_>>();
    Topology::from_edges(&hosts, &pairs)
}

/// Lets all higher ranks in.
fn receive_callers(
    party: &Party,
    welcome: &Welcome,
    coordinator: &Channel,
    listener: TcpListener,
    by: Instant,
) -> Result<BTreeMap<usize, Bond>, FabricError> {
    let started = Instant::now();
    let callers = {
        let (party, stripes) = (party.clone(), Stripes::default());
        move |stream, until: Instant| pairing::answer(&party, &stripes, stream, until)
    };
    let mut reception = Reception::new(listener, callers)?;
    let mut came: BTreeMap<usize, Bond> = BTreeMap::new();
    while came.len() < welcome.ranks.len() - welcome.rank - 1 {
        // The coordinator says nothing more until all links are up, but it goes away when another rank fails.
        if let Err(cause) = coordinator.has_spoken() {
            return Err(FabricError::CoordinatorLost { cause });
        }
        if Instant::now() >= by {
            let missing = (welcome.rank + 1..welcome.ranks.len()).filter(|rank| !came.contains_key(rank));
            return Err(FabricError::Timeout {
                what: format!("the connection of ranks {:?} to rank {}", missing.collect::<Vec<_>>(), welcome.rank),
                after: started.elapsed(),
            });
        }
        let Some(visit) = reception.next(by.min(end_of(GLANCE)))? else { continue };
        match visit.outcome {
            Ok(Caller::Delivered) => {}
            Ok(Caller::Bonded(rank, bond)) => {
                if came.insert(rank, bond).is_some() {
                    return Err(FabricError::Invalid(format!("rank {rank} connected twice")));
                }
            }
            // What a stranger does is no concern of the group; what a rank lacks shows at the deadline or by its
            // own report.
            Err(error) => tracing::warn!("dropped a connection from {}: {error}", visit.from),
        }
    }
    Ok(came)
}
