//! Connections to another rank over every cable that leads there.
//!
//! Two machines may have several addresses each, and which of them lead to each other is for the network to say: all that
//! could do so are tried at the same time. Where both sides have an address in the same network there is a cable
//! between them, or a switch; such a pair of addresses counts as one cable. Only where there is none do other ways,
//! through routers, come into question, and then one of them is enough.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::addresses::{Network, is_nowhere};
use super::reception::prepare;
use crate::error::FabricError;
use crate::timed::{end_of, timespec};

/// How long a connection may take that leads to the other rank. One lost packet costs a second.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// One way to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// The address to come from; any, where that is `None`.
    from: Option<IpAddr>,
    to: SocketAddr,
}

impl Way {
    /// Connects once more by this way.
    pub(crate) fn connect(&self, by: Instant) -> Result<TcpStream, FabricError> {
        let failed = |error| FabricError::io(format!("cannot reach {} again", self.to), error);
        let mut attempt = [Attempt::start(*self, true).map_err(failed)?];
        let by = by.min(end_of(CONNECT_PATIENCE));
        while attempt[0].is_open() {
            if Instant::now() >= by {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            advance(&mut attempt, by).map_err(failed)?;
        }
        let [Attempt { state, .. }] = attempt;
        match state {
            State::Connected(stream) => Ok(stream),
            State::Failed(error) => Err(failed(error)),
            State::Open(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// The ways to a rank that listens at `theirs`, one per cable, with a connection by the first of them. The error says
/// why there is none.
pub(crate) fn reach(
    own: &[Network],
    theirs: &[SocketAddr],
    same_host: bool,
    by: Instant,
) -> Result<(Vec<Way>, TcpStream), String> {
    let by = by.min(end_of(CONNECT_PATIENCE));
    let mut attempts: Vec<Attempt> = candidates(own, theirs, same_host)
        .into_iter()
        .map(|(way, by_cable)| {
            Attempt::start(way, by_cable).unwrap_or_else(|error| Attempt::failed(way, by_cable, error))
        })
        .collect();
    while !is_decided(&attempts) && Instant::now() < by {
        advance(&mut attempts, by).map_err(|error| error.to_string())?;
    }
    let why = failures(&attempts);
    let mut chosen: Vec<(Way, TcpStream)> = Vec::new();
    let any_cable = attempts.iter().any(|it| it.by_cable && matches!(it.state, State::Connected(_)));
    for attempt in attempts {
        let State::Connected(stream) = attempt.state else { continue };
        let way = attempt.way;
        let new = chosen.iter().all(|(other, _)| other.from != way.from && other.to != way.to);
        if attempt.by_cable && new || !any_cable && chosen.is_empty() {
            chosen.push((way, stream));
        }
    }
    let ways = chosen.iter().map(|(way, _)| *way).collect();
    chosen.into_iter().next().map(|(_, stream)| (ways, stream)).ok_or(why)
}

/// All pairs of addresses to try, best first, and whether a cable may join the two.
fn candidates(own: &[Network], theirs: &[SocketAddr], same_host: bool) -> Vec<(Way, bool)> {
    // What is on another machine's loopback is on this one's for this one.
    let elsewhere = |to: &SocketAddr| !is_nowhere(*to) && (same_host || !to.ip().is_loopback());
    let theirs: Vec<SocketAddr> = theirs.iter().copied().filter(elsewhere).collect();
    if same_host {
        return theirs.first().map(|&to| (Way { from: None, to }, true)).into_iter().collect();
    }
    let mut candidates = Vec::new();
    for network in own.iter().filter(|network| !network.address().is_loopback()) {
        for &to in theirs.iter().filter(|to| network.contains(to.ip()) && network.address() != to.ip()) {
            candidates.push((Way { from: Some(network.address()), to }, true));
        }
    }
    // What is this machine's own address leads to this machine.
    let foreign = theirs.iter().filter(|to| own.iter().all(|network| network.address() != to.ip()));
    candidates.extend(foreign.map(|&to| (Way { from: None, to }, false)));
    candidates
}

/// Whether waiting on would change nothing: all cables have shown what they are worth, and where there is none, one
/// other way is there or none is left.
fn is_decided(attempts: &[Attempt]) -> bool {
    let cables_open = attempts.iter().any(|it| it.by_cable && it.is_open());
    let connected = attempts.iter().any(|it| matches!(it.state, State::Connected(_)));
    !cables_open && (connected || !attempts.iter().any(Attempt::is_open))
}

fn failures(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return "it listens at no address that could be reached from here".to_owned();
    }
    let say = |attempt: &Attempt| match &attempt.state {
        State::Failed(error) => format!("{}: {error}", attempt.way.to),
        _ => format!("{}: no answer", attempt.way.to),
    };
    attempts.iter().map(say).collect::<Vec<_>>().join("; ")
}

struct Attempt {
    way: Way,
    by_cable: bool,
    state: State,
}

enum State {
    Open(Socket),
    Connected(TcpStream),
    Failed(io::Error),
}

impl Attempt {
    fn start(way: Way, by_cable: bool) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(way.to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        if let Some(from) = way.from {
            socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
        }
        match socket.connect(&SockAddr::from(way.to)) {
            Err(error) if !is_under_way(&error) => return Err(error),
            _ => {}
        }
        Ok(Self { way, by_cable, state: State::Open(socket) })
    }

    fn failed(way: Way, by_cable: bool, error: io::Error) -> Self {
        Self { way, by_cable, state: State::Failed(error) }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Looks what has become of an attempt that the system says has come to its end.
    fn settle(&mut self) {
        let placeholder = State::Failed(io::ErrorKind::Other.into());
        let State::Open(socket) = std::mem::replace(&mut self.state, placeholder) else { return };
        self.state = match established(socket) {
            Ok(stream) => State::Connected(stream),
            Err(error) => State::Failed(error),
        };
    }
}

fn is_under_way(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
}

fn established(socket: Socket) -> io::Result<TcpStream> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let stream = TcpStream::from(socket);
    // A connection to a port of one's own range can meet itself when nobody listens there.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    prepare(&stream).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(stream)
}

/// Waits until something has become of an open attempt.
fn advance(attempts: &mut [Attempt], by: Instant) -> io::Result<()> {
    let mut open = Vec::new();
    let mut sockets = Vec::new();
    for (index, attempt) in attempts.iter().enumerate() {
        if let State::Open(socket) = &attempt.state {
            open.push(index);
            sockets.push(PollFd::new(socket, PollFlags::OUT));
        }
    }
    let left = by.saturating_duration_since(Instant::now());
    match rustix::event::poll(&mut sockets, Some(&timespec(left))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let settled: Vec<usize> =
        open.into_iter().zip(&sockets).filter(|(_, it)| !it.revents().is_empty()).map(|(index, _)| index).collect();
    drop(sockets);
    for index in settled {
        attempts[index].settle();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn soon() -> Instant {
        end_of(Duration::from_secs(10))
    }

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn pairs_of_one_network_come_first() {
        let own = [network("10.0.1.1/24"), network("10.0.2.1/24"), network("172.17.0.1/16"), network("127.0.0.1/8")];
        let theirs =
            ["10.0.2.2:5", "10.0.1.2:5", "172.17.0.1:5", "192.168.0.9:5", "0.0.0.0:5", "127.0.0.1:5"].map(address);
        let found = candidates(&own, &theirs, false);
        let cables: Vec<_> = found.iter().filter(|(_, cable)| *cable).map(|(way, _)| way.to).collect();
        assert_eq!(cables, [address("10.0.1.2:5"), address("10.0.2.2:5")]);
        let others: Vec<_> = found.iter().filter(|(_, cable)| !*cable).map(|(way, _)| way.to).collect();
        assert_eq!(others, [address("10.0.2.2:5"), address("10.0.1.2:5"), address("192.168.0.9:5")]);
        assert_eq!(candidates(&own, &theirs, true).len(), 1);
    }

    #[test]
    fn a_listener_is_reached_and_nobody_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (ways, stream) = reach(&[network("127.0.0.1/8")], &[at], true, soon()).unwrap();
        assert_eq!((ways.len(), stream.peer_addr().unwrap()), (1, at));
        assert_eq!(ways[0].connect(soon()).unwrap().peer_addr().unwrap(), at);
        drop(listener);
        let why = reach(&[], &[at], true, soon()).unwrap_err();
        assert!(why.contains(&at.to_string()), "{why}");
        assert!(ways[0].connect(soon()).is_err());
        assert!(reach(&[], &[], false, soon()).unwrap_err().contains("no address"));
    }
}
