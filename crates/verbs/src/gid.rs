//! Addresses of RDMA ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A port's address: an IPv6 address, under which an IPv4 address appears as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID of these bytes, in the order in which they travel.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, in the order in which they travel.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The GID that a port has for an IP address of its network interface.
    pub fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }

    /// The IPv4 address, if it is one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it is an unused place of a port's table.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ipv4() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}", Ipv6Addr::from(self.0)),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn addresses_survive(bytes: [u8; 4]) {
            let address = Ipv4Addr::from(bytes);
            let gid = Gid::of_address(address.into());
            proptest::prop_assert_eq!(gid.ipv4(), Some(address));
            proptest::prop_assert_eq!(gid.to_string(), address.to_string());
            proptest::prop_assert_eq!(&gid.to_bytes()[10..12], &[0xff, 0xff]);
        }

        #[test]
        fn other_addresses_are_no_ipv4_address(bytes: [u8; 16]) {
            let gid = Gid::from_bytes(bytes);
            let mapped = bytes[..10] == [0; 10] && bytes[10..12] == [0xff, 0xff];
            proptest::prop_assert_eq!(gid.ipv4().is_some(), mapped);
            proptest::prop_assert_eq!(Gid::of_address(Ipv6Addr::from(bytes).into()), gid);
        }
    }
}
