//! SHA-256 digests as values: parsed, compared and printed in one place.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The SHA-256 of a file, shown as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// Text that is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest of 64 hexadecimal digits")]
pub struct BadDigest(String);

impl Digest {
    /// Wraps the 32 bytes of a digest.
    pub const fn new(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// The 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A digest written in this crate's own source; a malformed one stops the compiler, not the program.
    pub(crate) const fn literal(hex: &str) -> Digest {
        let hex = hex.as_bytes();
        assert!(hex.len() == 64, "a digest literal has 64 digits");
        let mut bytes = [0; 32];
        let mut i = 0;
        while i < 32 {
            bytes[i] = literal_digit(hex[2 * i]) << 4 | literal_digit(hex[2 * i + 1]);
            i += 1;
        }
        Digest(bytes)
    }
}

const fn literal_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => panic!("a digest literal is lower-case hexadecimal"),
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Digest, BadDigest> {
        let bad = || BadDigest(text.chars().take(80).collect());
        let digits: Vec<u8> =
            text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>().ok_or_else(bad)?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        if digits.len() != 64 {
            return Err(bad());
        }
        Ok(Digest(bytes.try_into().map_err(|_| bad())?))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Digest, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

    #[test]
    fn text_and_bytes_agree() {
        let digest: Digest = HEX.parse().unwrap();
        assert_eq!(digest.to_string(), HEX);
        assert_eq!(digest, Digest::literal(HEX));
        assert_eq!(digest.bytes()[..2], [0xb1, 0x79]);
        assert_eq!(HEX.to_uppercase().parse::<Digest>().unwrap(), digest);
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in ["", "b1", &HEX[1..], &format!("{HEX}0"), &HEX.replace('b', "g"), &"é".repeat(32)] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
