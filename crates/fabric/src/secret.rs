//! The secret that ranks and coordinator share.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::FabricError;

/// Secrets shorter than this can be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// Files longer than this are no secrets but mistakes.
const SECRET_BYTES_MAX: usize = 4096;

/// Proof of belonging to a group. It never travels: both sides of a connection show that they know it by answering
/// fresh challenges. It never prints itself either.
#[derive(Clone)]
pub struct Secret {
    bytes: Vec<u8>,
}

impl Secret {
    /// A fresh secret of 256 random bits.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random() -> Result<Self, FabricError> {
        Ok(Self { bytes: hex(&random_bytes::<32>()?).into_bytes() })
    }

    /// A secret from text or bytes that the user keeps.
    ///
    /// # Errors
    /// When it is too short to be one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FabricError> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(FabricError::Invalid(format!(
                "a secret of {} bytes can be guessed; use at least {SECRET_BYTES_MIN}",
                bytes.len()
            )));
        }
        Ok(Self { bytes: bytes.to_vec() })
    }

    /// Reads a secret from a file; white space around it does not count. Warns when others can read the file.
    ///
    /// # Errors
    /// When the file cannot be read, or holds too little or too much.
    pub fn from_file(path: &Path) -> Result<Self, FabricError> {
        let failed = |error| FabricError::io(format!("cannot read the secret file {}", path.display()), error);
        let file = std::fs::File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
            tracing::warn!("the secret file {} can be read by others; chmod 600 it", path.display());
        }
        let mut bytes = Vec::new();
        file.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > SECRET_BYTES_MAX {
            return Err(FabricError::Invalid(format!(
                "the secret file {} is larger than {SECRET_BYTES_MAX} bytes; is it the right file?",
                path.display()
            )));
        }
        Self::from_bytes(bytes.trim_ascii())
    }

    /// Writes the secret to a new file that only its owner can read.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn write_to_file(&self, path: &Path) -> Result<(), FabricError> {
        let write = || {
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(&self.bytes)
        };
        write().map_err(|error| FabricError::io(format!("cannot write the secret file {}", path.display()), error))
    }

    /// The secret itself, for handing it to a child process over a pipe. Never print or log it.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    /// A keyed digest that is still to be fed.
    pub(crate) fn keyed_digest(&self) -> Hmac<Sha256> {
        // HMAC takes keys of any length, so that the error cannot occur; an empty key would only make proofs fail.
        Hmac::<Sha256>::new_from_slice(&self.bytes).unwrap_or_else(|_| Hmac::<Sha256>::new(&Default::default()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], FabricError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| FabricError::io("no random numbers", std::io::Error::other(error)))?;
    Ok(bytes)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_print_itself() {
        let secret = Secret::from_bytes(b"the quick brown fox").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn survives_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secret = Secret::random().unwrap();
        secret.write_to_file(&path).unwrap();
        assert_eq!(Secret::from_file(&path).unwrap().bytes, secret.bytes);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(secret.write_to_file(&path).is_err(), "an existing file must not be replaced");
        std::fs::write(&path, "short\n").unwrap();
        assert!(Secret::from_file(&path).unwrap_err().to_string().contains("guessed"));
    }
}
