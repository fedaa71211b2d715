//! Where a rank can be reached: the addresses of its machine's interfaces, and which of them to use.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::error::FabricError;

/// The most addresses that one rank is looked for at.
pub(crate) const ADDRESSES_MAX: usize = 64;

/// A range of addresses, such as `10.0.0.0/24`, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of `address` whose first `prefix` bits are fixed; of more bits than an address has, all are.
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        Self { address, prefix: prefix.min(bits(address)) }
    }

    /// Whether an address belongs to it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let prefix = u32::from(self.prefix);
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                (ours.to_bits() ^ theirs.to_bits()) & mask == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                (ours.to_bits() ^ theirs.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self::new(address, u8::MAX)
    }
}

impl FromStr for Network {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        let wrong =
            || FabricError::Invalid(format!("{text:?} is neither an address nor a network such as 10.0.0.0/24"));
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        match prefix {
            Some(prefix) if prefix > bits(address) => Err(wrong()),
            Some(prefix) => Ok(Self::new(address, prefix)),
            None => Ok(address.into()),
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The addresses at which this rank is to be reached, each with its network, best first.
///
/// `chosen` picks among the machine's addresses. Without a choice it is all of them; except that a rank whose rendezvous
/// is on loopback stays there, as `towards_rendezvous`, its own address on that connection, tells.
pub(crate) fn own_addresses(
    chosen: &[Network],
    towards_rendezvous: IpAddr,
    everywhere: bool,
) -> Result<Vec<Network>, FabricError> {
    let first = canonical(towards_rendezvous);
    if chosen.is_empty() && first.is_loopback() && !everywhere {
        return Ok(vec![network_of_loopback(first)]);
    }
    let found = machine_addresses()?;
    let wanted = |address: IpAddr| match chosen {
        [] => !address.is_loopback(),
        _ => chosen.iter().any(|network| network.contains(address)),
    };
    let mut own: Vec<Network> = found.iter().copied().filter(|network| wanted(network.address)).collect();
    // What leads to the rendezvous most likely leads to the others.
    own.sort_by_key(|network| network.address != first);
    own.truncate(ADDRESSES_MAX);
    if own.is_empty() {
        let list = |networks: &[Network]| networks.iter().map(Network::to_string).collect::<Vec<_>>().join(", ");
        return Err(FabricError::Invalid(format!(
            "none of this machine's addresses ({}) is in {}, where this rank is to be reached",
            list(&found),
            if chosen.is_empty() { "a network with others".to_owned() } else { list(chosen) },
        )));
    }
    Ok(own)
}

fn network_of_loopback(address: IpAddr) -> Network {
    Network::new(address, if address.is_ipv4() { 8 } else { 128 })
}

/// All addresses that others can connect to without knowing an interface of their own.
fn machine_addresses() -> Result<Vec<Network>, FabricError> {
    let interfaces = if_addrs::get_if_addrs();
    let interfaces = interfaces.map_err(|error| FabricError::io("cannot list this machine's addresses", error))?;
    let networks = interfaces.iter().map(|interface| match &interface.addr {
        if_addrs::IfAddr::V4(v4) => Network::new(v4.ip.into(), v4.netmask.to_bits().count_ones() as u8),
        if_addrs::IfAddr::V6(v6) => Network::new(v6.ip.into(), v6.netmask.to_bits().count_ones() as u8),
    });
    // An IPv6 address of one link means nothing without the number that the other side's interface has there.
    Ok(networks.filter(|network| !is_of_one_link(network.address)).collect())
}

fn is_of_one_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// An IPv4 address that looks like an IPv6 one is an IPv4 address.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Whether nobody can be there.
pub(crate) fn is_nowhere(address: SocketAddr) -> bool {
    let nothing = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    nothing.contains(&address.ip()) || address.ip().is_multicast() || address.port() == 0
}

impl Network {
    /// The address that the network was given by.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_read_and_contain_their_addresses() {
        let lan = network("10.1.2.0/23");
        assert!(lan.contains("10.1.3.255".parse().unwrap()) && !lan.contains("10.1.4.0".parse().unwrap()));
        assert!(!lan.contains("::1".parse().unwrap()));
        assert!(network("0.0.0.0/0").contains("255.1.2.3".parse().unwrap()));
        assert!(network("fd00::/8").contains("fdff::1".parse().unwrap()));
        assert!(network("::/0").contains("1::".parse().unwrap()));
        let one = network("192.168.0.7");
        assert_eq!(one.to_string(), "192.168.0.7/32");
        assert!(one.contains(one.address()) && !one.contains("192.168.0.6".parse().unwrap()));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/-1", "host/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rank_near_its_rendezvous_stays_on_loopback() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(own_addresses(&[], loopback, false).unwrap(), [network("127.0.0.1/8")]);
        let error = own_addresses(&[network("203.0.113.77")], loopback, false).unwrap_err().to_string();
        assert!(error.contains("203.0.113.77/32"), "{error}");
        let chosen = own_addresses(&[network("127.0.0.0/8")], loopback, true).unwrap();
        assert!(chosen.iter().any(|own| own.address() == loopback));
    }
}
