//! What pip's output says about why it failed. pip has no other way to tell: its exit status is 1 for everything.

/// Why pip failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The program is no Python with pip.
    NoPip,
    /// No index can be reached.
    Network,
    /// The disk is full.
    NoSpace,
    /// The indexes have no such package or version, or no wheel of it.
    PackageMissing,
    /// Something else.
    Other,
}

/// Reads the output of a failed pip.
pub(super) fn classify(output: &str) -> Failure {
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| output.contains(phrase));
    // The last two are what macOS and Windows put in the place of a Python that is not installed.
    if says(&["No module named pip", "No module named 'pip'", "xcode-select:", "Python was not found"]) {
        return Failure::NoPip;
    }
    if says(&["No space left on device", "[Errno 28]", "Disk quota exceeded"]) {
        return Failure::NoSpace;
    }
    // Without a network pip also says that no distribution matches, so this comes first.
    if says(&[
        "after connection broken by",
        "Max retries exceeded",
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "Read timed out",
        "ReadTimeoutError",
        "ConnectTimeoutError",
        "ConnectionResetError",
        "Could not fetch URL",
        "incomplete-download",
    ]) {
        return Failure::Network;
    }
    if says(&["No matching distribution found", "Could not find a version that satisfies"]) {
        return Failure::PackageMissing;
    }
    Failure::Other
}

/// The reason in pip's output about a network out of reach, as short as it can be found.
pub(super) fn network_detail(output: &str) -> String {
    let reason =
        output.lines().rev().find_map(|line| line.split_once("connection broken by ").map(|(_, reason)| reason));
    // pip adds the path of the page after its quote of the reason.
    let reason =
        reason.map(|reason| reason.rsplit_once("': /").map_or(reason, |(quoted, _)| quoted).trim_matches('\''));
    let last = || output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    reason.unwrap_or_else(last).trim().to_owned()
}

/// The size that pip announces, as in `Downloading x-1.0-py3-none-any.whl (92.9 MB)`: the last one in the output. What
/// pip says about `x-1.0-py3-none-any.whl.metadata` does not count.
pub(super) fn announced_bytes(output: &str) -> Option<u64> {
    let size = output.lines().rev().find_map(|line| {
        let (name, size) = line.trim().strip_prefix("Downloading ")?.strip_suffix(')')?.rsplit_once(" (")?;
        name.ends_with(".whl").then_some(size)
    })?;
    let (figure, unit) = size.split_once(' ')?;
    let figure: f64 = figure.parse().ok().filter(|figure| (0.0..1e9).contains(figure))?;
    let scale = match unit {
        "bytes" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some((figure * scale) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let missing = "ERROR: Could not find a version that satisfies the requirement nope (from versions: none)\n\
                       ERROR: No matching distribution found for nope";
        let network = "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by \
                       'NewConnectionError('<x>: Failed to establish a new connection')': /simple/nope/";
        let cases = [
            ("/usr/bin/python3: No module named pip", Failure::NoPip),
            (missing, Failure::PackageMissing),
            (&format!("{network}\n{missing}"), Failure::Network),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
                Failure::NoSpace,
            ),
            ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", Failure::Other),
            ("", Failure::Other),
        ];
        for (output, failure) in cases {
            assert_eq!(classify(output), failure, "{output}");
        }
    }

    #[test]
    fn the_reason_of_a_network_failure_is_short() {
        let output = "WARNING: Retrying (total=0) after connection broken by 'NewConnectionError('<x>: Failed to \
                      establish a new connection: [Errno 111] Connection refused')': /simple/nope/\nERROR: No matching";
        let reason = "NewConnectionError('<x>: Failed to establish a new connection: [Errno 111] Connection refused')";
        assert_eq!(network_detail(output), reason);
        assert_eq!(network_detail("one\nRead timed out\n\n"), "Read timed out");
        assert_eq!(network_detail(""), "");
    }

    #[test]
    fn sizes_of_wheels_are_read() {
        let output = "Collecting a\n  Downloading a-1.0-py3-none-any.whl (92.9 MB)\n";
        assert_eq!(announced_bytes(output), Some(92_900_000));
        assert_eq!(
            announced_bytes("Downloading a.whl (1.5 GB)\n  Downloading b.whl.metadata (2.8 kB)\n"),
            Some(1_500_000_000)
        );
        for none in [
            "",
            "Downloading a.whl",
            "Downloading a.whl (x MB)",
            "Downloading a.whl (9 XB)",
            "Downloading a.whl (-1 MB)",
        ] {
            assert_eq!(announced_bytes(none), None, "{none}");
        }
    }
}
