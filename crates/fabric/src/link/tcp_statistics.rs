//! How often the system had to send something again on a TCP connection.
//!
//! Linux tells it over a socket of its own (`man 7 sock_diag`), which is asked for the one connection between two
//! addresses. All numbers are those of this machine's byte order, except ports and addresses.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// Bytes of the header of each message to and from the kernel.
const HEADER_BYTES: usize = 16;
/// Bytes of a question: header, and what is asked for.
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// Bytes of an answer before its attributes: header, and who the connection is between.
const ANSWER_BYTES: usize = HEADER_BYTES + 72;
/// `SOCK_DIAG_BY_FAMILY`, the kind of question and answer.
const KIND: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `INET_DIAG_INFO`: the attribute that holds the connection's statistics.
const STATISTICS: u16 = 2;
/// Where `tcpi_total_retrans` lies in the statistics.
const RETRANSMITTED_AT: usize = 100;

/// The segments of the connection between two addresses that had to be sent again; `None` where the system does not
/// tell.
pub(super) fn retransmitted(local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    );
    let kernel = kernel.ok()?;
    // The kernel answers before the question has been sent.
    send(&kernel, &question(local, remote), SendFlags::empty()).ok()?;
    let mut answer = [0; 4096];
    let (count, _) = recv(&kernel, &mut answer[..], RecvFlags::empty()).ok()?;
    read_answer(&answer[..count])
}

fn question(local: SocketAddr, remote: SocketAddr) -> [u8; QUESTION_BYTES] {
    let mut bytes = [0; QUESTION_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(QUESTION_BYTES as u32).to_ne_bytes());
    put(&KIND.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    // Number of the question and of its sender, of which there are no others.
    put(&[0; 8]);
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (tcp, wanted) = (6, 1 << (STATISTICS - 1));
    // Families are small numbers.
    put(&[family.as_raw() as u8, tcp, wanted, 0]);
    let any_state = u32::MAX;
    put(&any_state.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    for address in [local, remote] {
        let mut octets = [0; 16];
        match address.ip() {
            IpAddr::V4(v4) => octets[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => octets = v6.octets(),
        }
        put(&octets);
    }
    let (any_interface, any_cookie) = ([0; 4], [0xff; 8]);
    put(&any_interface);
    put(&any_cookie);
    bytes
}

fn read_answer(bytes: &[u8]) -> Option<u64> {
    if bytes.get(4..6)? != KIND.to_ne_bytes() {
        return None;
    }
    let mut attributes = bytes.get(ANSWER_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes([*attributes.first()?, *attributes.get(1)?]));
        let kind = u16::from_ne_bytes([*attributes.get(2)?, *attributes.get(3)?]);
        if kind == STATISTICS {
            let statistics = attributes.get(4..length)?;
            let number = statistics.get(RETRANSMITTED_AT..RETRANSMITTED_AT + 4)?;
            return Some(u32::from_ne_bytes(number.try_into().ok()?).into());
        }
        // Attributes begin at multiples of four bytes.
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::local_sockets;

    #[test]
    fn a_connection_over_loopback_repeats_nothing() {
        let (one, other) = local_sockets().unwrap();
        let ends = |stream: &std::net::TcpStream| (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        // Some systems do not tell at all.
        if let Some(count) = retransmitted(ends(&one).0, ends(&one).1) {
            assert_eq!(count, 0);
            assert_eq!(retransmitted(ends(&other).0, ends(&other).1), Some(0));
        }
        let (local, _) = ends(&one);
        assert_eq!(retransmitted(local, SocketAddr::from(([127, 0, 0, 1], 1))), None);
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_a_number_or_nothing(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300), whole: bool) {
            let mut bytes = bytes;
            if whole && bytes.len() > ANSWER_BYTES {
                bytes[4..6].copy_from_slice(&KIND.to_ne_bytes());
            }
            let _ = read_answer(&bytes);
        }
    }
}
