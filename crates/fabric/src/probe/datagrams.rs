//! Lost packets, told by small datagrams beside the link: TCP hides what it sends again, and tells not every system's
//! programs how often it did.
//!
//! Datagrams are sent in bursts that fit the receiver's buffer, slowly enough not to fill the cable. What they are and
//! when they end is said over the link itself.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::Pace;
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::link::Cable;

/// Datagrams of a burst: the smallest default buffer of a receiver holds them all.
const BURST: u64 = 64;
/// Bursts of a measurement, unless time runs out.
const BURSTS: u64 = 10;
/// Bytes of a datagram: a number that is secret until sent, so that no stranger is counted, its place, and padding.
const DATAGRAM_BYTES: usize = 128;
/// How long the receiver waits for datagrams that may only be late.
const GRACE: Duration = Duration::from_millis(30);

/// What the receiver answers when it has no socket for a cable.
const NO_PORT: u64 = 0;

impl Fabric {
    /// The share of datagrams lost on the way to a rank over all cables of the link, of 0 to 1; `None` when that cannot
    /// be measured.
    pub(super) fn measure_loss(&mut self, to: usize, pace: &Pace) -> Result<Option<f64>, FabricError> {
        let cables = self.cables(to);
        let (mut sent, mut received) = (0, 0);
        for cable in cables {
            let Ok(socket) = UdpSocket::bind(SocketAddr::new(cable.local, 0)) else { continue };
            self.send(to, &address_bytes(cable.remote))?;
            let port = self.recv_number(to)?;
            let Some(port) = u16::try_from(port).ok().filter(|&port| u64::from(port) != NO_PORT) else { continue };
            let target = SocketAddr::new(cable.remote, port);
            let started = Instant::now();
            for burst in 0..BURSTS {
                if burst > 0 && started.elapsed() > pace.budget * 2 {
                    break;
                }
                // A datagram that the system refuses to send counts as lost, too.
                send_burst(&socket, target, pace.gap);
                self.send_number(to, BURST)?;
                received += self.recv_number(to)?.min(BURST);
                sent += BURST;
            }
            self.send_number(to, 0)?;
        }
        self.send(to, &[0; 17])?;
        Ok((sent > 0).then(|| 1.0 - received as f64 / sent as f64))
    }

    /// The other side of [`Fabric::measure_loss`].
    pub(super) fn serve_loss(&mut self, from: usize) -> Result<(), FabricError> {
        loop {
            let mut bytes = [0; 17];
            self.recv(from, &mut bytes)?;
            let Some(address) = address_of(&bytes) else { return Ok(()) };
            // Only addresses of this very link are listened at, whatever the other side asks for.
            let cable = self.cables(from).into_iter().find(|cable| cable.local == address);
            let socket = cable.and_then(|Cable { local, .. }| listen(local));
            let port = socket.as_ref().and_then(|socket| socket.local_addr().ok()).map_or(0, |address| address.port());
            self.send_number(from, port.into())?;
            let Some(socket) = socket.filter(|_| port != 0) else { continue };
            loop {
                let expected = self.recv_number(from)?.min(BURST);
                if expected == 0 {
                    break;
                }
                let received = count_burst(&socket, expected);
                self.send_number(from, received)?;
            }
        }
    }

    fn send_number(&mut self, to: usize, number: u64) -> Result<(), FabricError> {
        self.send(to, &number.to_le_bytes())
    }

    fn recv_number(&mut self, from: usize) -> Result<u64, FabricError> {
        let mut bytes = [0; 8];
        self.recv(from, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn listen(address: IpAddr) -> Option<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(address, 0)).ok()?;
    socket.set_read_timeout(Some(GRACE)).ok()?;
    Some(socket)
}

fn send_burst(socket: &UdpSocket, target: SocketAddr, gap: Duration) {
    let mut next = Instant::now();
    for _ in 0..BURST {
        let _ = socket.send_to(&[0x5a; DATAGRAM_BYTES], target);
        next += gap;
        let wait = next.saturating_duration_since(Instant::now());
        if wait > Duration::from_micros(50) {
            std::thread::sleep(wait);
        }
    }
}

/// Datagrams that have come, waiting for late ones only as long as some are missing.
fn count_burst(socket: &UdpSocket, expected: u64) -> u64 {
    let mut buffer = [0; DATAGRAM_BYTES];
    let mut count = 0;
    while count < expected {
        match socket.recv(&mut buffer) {
            Ok(DATAGRAM_BYTES) => count += 1,
            Ok(_) => {}
            // Nothing has come for a while: the rest is lost.
            Err(_) => break,
        }
    }
    count
}

/// Sixteen bytes of address and one that says of which kind it is; zeros are none.
fn address_bytes(address: IpAddr) -> [u8; 17] {
    let mut bytes = [0; 17];
    match address {
        IpAddr::V4(address) => {
            bytes[..4].copy_from_slice(&address.octets());
            bytes[16] = 4;
        }
        IpAddr::V6(address) => {
            bytes[..16].copy_from_slice(&address.octets());
            bytes[16] = 6;
        }
    }
    bytes
}

fn address_of(bytes: &[u8; 17]) -> Option<IpAddr> {
    let [a, b, c, d, ..] = *bytes;
    match bytes[16] {
        4 => Some(IpAddr::from([a, b, c, d])),
        6 => <[u8; 16]>::try_from(&bytes[..16]).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_wire() {
        for address in ["10.1.2.3", "fe80::1:2", "::"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(address_of(&address_bytes(address)), Some(address));
        }
        assert_eq!(address_of(&[0; 17]), None);
    }
}
