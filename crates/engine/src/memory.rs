//! What the operating system tells of memory.

/// The largest resident memory so far in bytes, or 0 where the system does not tell.
pub fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map_or(0, |kibibytes| kibibytes * 1024)
}

/// The memory in bytes that processes may still take without others losing theirs, where the system tells.
pub(crate) fn available_bytes() -> Option<u64> {
    let information = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
