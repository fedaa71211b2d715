//! Which ranks run on one host.

use sha2::{Digest, Sha256};

use crate::error::FabricError;
use crate::secret::{hex, random_bytes};

/// Identifies the running system: equal for two processes only if they run on the same machine since the same start and
/// see the same network. Whether they can share memory is still to be tried, as containers on one machine may be kept apart.
///
/// Where the system tells nothing about itself, the identity is random: such ranks do not share memory.
pub(crate) fn host_identity() -> Result<String, FabricError> {
    let mut digest = Sha256::new();
    digest.update(b"ropewalk host");
    match system_identity() {
        Some(identity) => digest.update(identity),
        None => digest.update(random_bytes::<32>()?),
    }
    Ok(hex(&digest.finalize()[..16]))
}

#[cfg(target_os = "linux")]
fn system_identity() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Containers often lack it, and then their boot is enough.
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    // Processes with networks of their own are hosts of their own.
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    Some(format!("{machine}{boot}{}", network.display()))
}

#[cfg(not(target_os = "linux"))]
fn system_identity() -> Option<String> {
    let output = std::process::Command::new("/usr/sbin/sysctl")
        .args(["-n", "kern.uuid", "kern.bootsessionuuid"])
        .output()
        .ok()?;
    let identity = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !identity.trim().is_empty()).then_some(identity)
}
