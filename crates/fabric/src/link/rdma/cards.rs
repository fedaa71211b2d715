//! The RDMA ports of two machines, and which of them may be joined by a cable.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use verbs::{Device, Error, Mtu, PORT, PortState, Profile, ProtectionDomain};

use crate::rendezvous::Network;

/// The most ports of a machine that are looked at.
pub(crate) const CARDS_MAX: usize = 16;

/// A port as the other side sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    /// The device's name at its machine, for messages.
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// How many bits of the address name its network.
    pub(crate) prefix: u8,
    /// Bytes of the largest packet.
    pub(crate) mtu: u32,
    /// Whether its driver may know reliable connections.
    pub(crate) reliable: bool,
}

/// A port of this machine.
pub(crate) struct LocalCard {
    pub(crate) device: Device,
    /// Where the address lies in the port's table, at this moment.
    pub(crate) gid_index: u8,
    pub(crate) lid: u16,
    pub(crate) card: Card,
}

/// The ports of this machine that carry data and have an IPv4 address, by address; and what is wrong with others.
///
/// `ROPEWALK_RDMA_DEVICES`, names with commas between them, leaves only the devices with these names.
///
/// # Errors
/// Without any device; see [`Error::is_absence`].
pub(crate) fn local_cards() -> Result<(Vec<LocalCard>, Vec<Error>), Error> {
    let (mut cards, mut problems) = (Vec::new(), Vec::new());
    let only = std::env::var("ROPEWALK_RDMA_DEVICES").unwrap_or_default();
    let devices = Device::all()?.into_iter().filter(|device| is_named(&only, device.name()));
    for device in devices.take(CARDS_MAX) {
        match local_card(device) {
            Ok(card) => cards.push(card),
            Err(problem) => problems.push(problem),
        }
    }
    // Names change from start to start, and the order of devices with them.
    cards.sort_by_key(|card| card.card.address);
    Ok((cards, problems))
}

/// Whether a list, if there is one, has this name.
fn is_named(list: &str, name: &str) -> bool {
    list.is_empty() || list.split(',').any(|it| it.trim() == name)
}

/// Whether this machine has a device at all.
pub(crate) fn is_here() -> bool {
    Device::all().is_ok()
}

fn local_card(device: Device) -> Result<LocalCard, Error> {
    let domain = ProtectionDomain::of(&device, Profile::native())?;
    let context = domain.context();
    let port = context.port(PORT)?;
    let name = device.name().to_owned();
    if port.state != PortState::Active {
        return Err(Error::PortDown { device: name, port: PORT, state: port.state });
    }
    let gids = context.gids(&port)?;
    let found = gids.iter().find_map(|(index, gid)| Some((*index, gid.ipv4()?)));
    let Some((gid_index, address)) = found else { return Err(Error::NoAddress { device: name, port: PORT }) };
    // Over Thunderbolt there are unreliable connections only, and its driver is not to be asked for others.
    let reliable = !(Profile::native() == Profile::Apple && name.starts_with("rdma_"));
    let card = Card { name, address, prefix: prefix_of(address), mtu: port.mtu.bytes(), reliable };
    Ok(LocalCard { device, gid_index, lid: port.lid, card })
}

/// How many bits of an interface's address name its network; all of them if nobody knows.
fn prefix_of(address: Ipv4Addr) -> u8 {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let found = interfaces.iter().find_map(|interface| match &interface.addr {
        if_addrs::IfAddr::V4(it) if it.ip == address => Some(it.netmask),
        _ => None,
    });
    found.map_or(32, |mask| u32::from(mask).leading_ones() as u8)
}

impl Card {
    /// Whether what another machine says about its port can be.
    pub(crate) fn is_sound(&self) -> bool {
        let address = self.address;
        let usable = !(address.is_unspecified() || address.is_multicast() || address.is_broadcast());
        usable && self.prefix <= 32 && Mtu::from_bytes(self.mtu).is_some() && self.name.len() <= 64
    }

    /// Whether an address is of the port's network.
    fn reaches(&self, other: Ipv4Addr) -> bool {
        Network::new(self.address.into(), self.prefix).contains(other.into())
    }
}

/// The connection over which two ranks have met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// The address of the side whose cards come first.
    pub(crate) first: IpAddr,
    pub(crate) second: IpAddr,
    pub(crate) same_host: bool,
}

/// Pairs of ports that a cable may join, as places in the two lists, the likeliest first.
///
/// The ports with the addresses of the connection come first. Others have to be of one network, which does not say much
/// where every cable's ends have addresses of the same one: whether a cable is there is to be tried.
pub(crate) fn candidates(first: &[Card], second: &[Card], meeting: Meeting) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (i, a) in first.iter().enumerate() {
        for (j, b) in second.iter().enumerate() {
            let met = [(a, meeting.first), (b, meeting.second)];
            let met = met.iter().filter(|(card, address)| IpAddr::V4(card.address) == *address).count();
            let one_network = a.reaches(b.address) && b.reaches(a.address);
            // A port could also be connected with itself, which within a host is the last resort.
            let looped = a.address == b.address;
            if met == 2 && !looped || one_network && (!looped || meeting.same_host) {
                found.push((looped, 2 - met, i, j));
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, _, i, j)| (i, j)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card(address: [u8; 4], prefix: u8) -> Card {
        Card { name: "rxe0".to_owned(), address: address.into(), prefix, mtu: 1024, reliable: true }
    }

    fn meeting(first: [u8; 4], second: [u8; 4], same_host: bool) -> Meeting {
        Meeting { first: Ipv4Addr::from(first).into(), second: Ipv4Addr::from(second).into(), same_host }
    }

    #[test]
    fn ports_of_the_connection_come_first_and_others_by_network() {
        let first = [card([10, 1, 0, 1], 24), card([10, 2, 0, 1], 24), card([10, 3, 0, 1], 24)];
        let second = [card([10, 3, 0, 2], 24), card([10, 2, 0, 2], 24), card([10, 9, 0, 2], 24)];
        let met = meeting([10, 2, 0, 1], [10, 2, 0, 2], false);
        assert_eq!(candidates(&first, &second, met), [(1, 1), (2, 0)]);
        // Over another network, as when the secret was exchanged over Wi-Fi.
        let met = meeting([192, 168, 0, 1], [192, 168, 0, 2], false);
        assert_eq!(candidates(&first, &second, met), [(1, 1), (2, 0)]);
    }

    #[test]
    fn cables_of_one_network_are_all_to_be_tried() {
        let first = [card([169, 254, 7, 1], 16), card([169, 254, 8, 1], 16)];
        let second = [card([169, 254, 9, 1], 16), card([169, 254, 6, 1], 16)];
        let met = meeting([169, 254, 8, 1], [169, 254, 9, 1], false);
        assert_eq!(candidates(&first, &second, met), [(1, 0), (0, 0), (1, 1), (0, 1)]);
    }

    #[test]
    fn within_a_host_other_ports_are_better_than_the_same() {
        let cards = [card([10, 77, 0, 1], 24), card([10, 77, 0, 2], 24)];
        let loopback = meeting([127, 0, 0, 1], [127, 0, 0, 1], true);
        assert_eq!(candidates(&cards, &cards, loopback), [(0, 1), (1, 0), (0, 0), (1, 1)]);
        assert_eq!(candidates(&cards[..1], &cards[..1], loopback), [(0, 0)]);
        let apart = Meeting { same_host: false, ..loopback };
        assert_eq!(candidates(&cards[..1], &cards[..1], apart), []);
    }

    proptest! {
        #[test]
        fn both_sides_see_the_same_pairs(
            first in prop::collection::vec((any::<[u8; 4]>(), 0u8..40), 0..5),
            second in prop::collection::vec((any::<[u8; 4]>(), 0u8..40), 0..5),
            same_host: bool,
        ) {
            let cards = |list: &[([u8; 4], u8)]| list.iter().map(|it| card(it.0, it.1)).collect::<Vec<_>>();
            let (first, second) = (cards(&first), cards(&second));
            let met = Meeting { first: Ipv4Addr::LOCALHOST.into(), second: Ipv4Addr::LOCALHOST.into(), same_host };
            let pairs = candidates(&first, &second, met);
            prop_assert!(pairs.iter().all(|&(i, j)| i < first.len() && j < second.len()));
            let mut turned: Vec<_> = candidates(&second, &first, met).into_iter().map(|(j, i)| (i, j)).collect();
            turned.sort_unstable();
            let mut sorted = pairs;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, turned);
        }
    }

    #[test]
    fn a_list_leaves_only_the_devices_that_it_names() {
        assert!(is_named("", "rdma_en5") && is_named("rdma_en2, rdma_en5", "rdma_en5"));
        assert!(!is_named("rdma_en2,rdma_en55", "rdma_en5"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(card([10, 0, 0, 1], 24).is_sound());
        assert!(!card([0, 0, 0, 0], 24).is_sound() && !card([10, 0, 0, 1], 33).is_sound());
        assert!(!Card { mtu: 1500, ..card([10, 0, 0, 1], 24) }.is_sound());
        assert!(!Card { name: "x".repeat(65), ..card([10, 0, 0, 1], 24) }.is_sound());
    }
}
