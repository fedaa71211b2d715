//! The IPv4 addresses of this machine's network interfaces.
#![allow(unsafe_code)]

use std::net::Ipv4Addr;

use crate::error::{Call, Error};

/// An address of a network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// How many of its leading bits name the network.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// The IPv4 addresses of all interfaces.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn all() -> Result<Vec<Self>, Error> {
        let mut first = std::ptr::null_mut();
        // SAFETY: the system writes the address of a list of its own.
        if unsafe { libc::getifaddrs(&mut first) } != 0 {
            return Err(Error::last(Call::ListInterfaces, "this machine"));
        }
        let mut found = Vec::new();
        let mut next = first;
        // SAFETY: the list is valid until it is freed, and ends with null.
        while let Some(entry) = unsafe { next.as_ref() } {
            if let (Some(address), Some(mask)) = (ipv4(entry.ifa_addr), ipv4(entry.ifa_netmask)) {
                found.push(Self { address, prefix: u32::from(mask).leading_ones() as u8 });
            }
            next = entry.ifa_next;
        }
        // SAFETY: this is the list from above, freed once, and nothing refers to it any more.
        unsafe { libc::freeifaddrs(first) }
        Ok(found)
    }

    /// Whether another address is of the same network.
    pub fn reaches(&self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
        u32::from(self.address) & mask == u32::from(other) & mask
    }
}

/// The IPv4 address in an entry of the list, if that is what it holds.
fn ipv4(address: *const libc::sockaddr) -> Option<Ipv4Addr> {
    // SAFETY: entries of the list point to addresses or are null.
    let family = unsafe { address.as_ref() }?.sa_family;
    if i32::from(family) != libc::AF_INET {
        return None;
    }
    // SAFETY: a zeroed address is a valid one.
    let mut whole: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let bytes = length_of(address).min(size_of_val(&whole));
    // SAFETY: an address of this family begins as a `sockaddr_in` does, and has at least `bytes` bytes.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut whole).cast::<u8>(), bytes) };
    Some(Ipv4Addr::from(u32::from_be(whole.sin_addr.s_addr)))
}

/// The bytes that an address really has. macOS leaves zeros at the end of network masks out.
#[cfg(target_os = "macos")]
fn length_of(address: *const libc::sockaddr) -> usize {
    // SAFETY: the caller has found an address there, of which this is the first byte.
    usize::from(unsafe { (*address).sa_len })
}

#[cfg(not(target_os = "macos"))]
fn length_of(_address: *const libc::sockaddr) -> usize {
    size_of::<libc::sockaddr_in>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address() {
        let all = InterfaceAddress::all().unwrap();
        let loopback = all.iter().find(|it| it.address == Ipv4Addr::LOCALHOST).unwrap();
        assert_eq!(loopback.prefix, 8);
        assert!(loopback.reaches(Ipv4Addr::new(127, 9, 9, 9)) && !loopback.reaches(Ipv4Addr::new(10, 0, 0, 1)));
    }

    #[test]
    fn prefixes_reach_as_far_as_they_say() {
        let of = |prefix| InterfaceAddress { address: Ipv4Addr::new(10, 77, 0, 1), prefix };
        let near = Ipv4Addr::new(10, 77, 0, 2);
        assert!(of(30).reaches(near) && of(24).reaches(near) && of(0).reaches(Ipv4Addr::BROADCAST));
        assert!(!of(32).reaches(near) && !of(31).reaches(near));
    }
}
