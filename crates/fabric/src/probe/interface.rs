//! What the system knows about cables and connections, where it tells.

use crate::link::Cable;

/// What the interfaces of these cables are rated for together, in bytes per second. Interfaces that are no hardware have
/// no rating.
pub(super) fn rated(cables: &[Cable]) -> Option<f64> {
    let rates: Option<Vec<f64>> = cables.iter().map(|cable| rated_interface(cable.local)).collect();
    rates.filter(|rates| !rates.is_empty()).map(|rates| rates.iter().sum())
}

/// TCP segments that this host has sent again since it started.
#[cfg(target_os = "linux")]
pub(super) fn segments_sent_again() -> Option<u64> {
    parse_segments_sent_again(&std::fs::read_to_string("/proc/net/snmp").ok()?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn segments_sent_again() -> Option<u64> {
    None
}

/// Reads the format of `/proc/net/snmp`: for each protocol a line of names and a line of numbers.
#[cfg(any(target_os = "linux", test))]
fn parse_segments_sent_again(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "RetransSegs")?;
    numbers.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(target_os = "linux")]
fn rated_interface(address: std::net::IpAddr) -> Option<f64> {
    let interface = if_addrs::get_if_addrs().ok()?.into_iter().find(|interface| interface.ip() == address)?;
    let folder = std::path::Path::new("/sys/class/net").join(interface.name);
    // Virtual interfaces claim a speed that means nothing.
    folder.join("device").exists().then_some(())?;
    let megabits: f64 = std::fs::read_to_string(folder.join("speed")).ok()?.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
}

#[cfg(not(target_os = "linux"))]
fn rated_interface(_address: std::net::IpAddr) -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: RtoAlgorithm InSegs OutSegs RetransSegs InErrs\nTcp: 1 10 20 7 0\n";
        assert_eq!(parse_segments_sent_again(text), Some(7));
        for wrong in ["", "Tcp: RetransSegs\n", "Tcp: a\nTcp: 1\n", "Tcp: RetransSegs\nTcp: x\n"] {
            assert_eq!(parse_segments_sent_again(wrong), None, "{wrong:?}");
        }
    }
}
