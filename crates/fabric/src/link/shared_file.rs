//! The file through which two processes come to share memory. It has a name only until both have mapped it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::shared_memory::Mapping;
use crate::secret::{hex, random_bytes};

const PREFIX: &str = "ropewalk-";
/// Hexadecimal digits after the prefix.
const NAME_DIGITS: usize = 32;

/// Memory that both ranks of a pair have mapped.
pub(crate) struct SharedFile {
    name: String,
    mapping: Mapping,
}

impl SharedFile {
    /// Creates and maps a file of zeros that only this user can open.
    pub(crate) fn create() -> io::Result<Self> {
        let name = format!("{PREFIX}{}", hex(&random_bytes::<{ NAME_DIGITS / 2 }>().map_err(io::Error::other)?));
        let path = folder().join(&name);
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let mapped = write_zeros(&mut file).and_then(|()| Mapping::new(&file));
        if mapped.is_err() {
            remove(&path);
        }
        Ok(Self { name, mapping: mapped? })
    }

    /// Maps the file that the other rank has created. Its name comes from there, so that it is checked to be the name
    /// of such a file, and the file to be one.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let digits = name.strip_prefix(PREFIX).unwrap_or_default();
        if digits.len() != NAME_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file of shared memory"));
        }
        // A link with such a name, put there by someone else, must not lead elsewhere.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let path = folder().join(name);
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)?;
        let metadata = file.metadata()?;
        let ours = metadata.is_file()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o777 == 0o600
            && metadata.len() == Mapping::BYTES as u64;
        if !ours {
            return Err(io::Error::other("the file's owner, mode or size are not what the other rank would give it"));
        }
        Ok(Self { name: name.to_owned(), mapping: Mapping::new(&file)? })
    }

    /// The name by which the other rank opens it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes the name away. The memory lives until both ranks have let go of it.
    pub(crate) fn unlink(&self) {
        remove(&folder().join(&self.name));
    }

    pub(super) fn into_mapping(self) -> Mapping {
        self.mapping
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// A folder in memory where there is one.
fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Gives the file its size. Every byte is written, so that a lack of memory shows now and not as a signal later.
fn write_zeros(file: &mut File) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    let mut left = Mapping::BYTES;
    while left > 0 {
        let count = left.min(zeros.len());
        file.write_all(&zeros[..count])?;
        left -= count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_refused() {
        let digits = "0".repeat(NAME_DIGITS);
        for name in ["", "ropewalk-", "/etc/passwd", &format!("../{PREFIX}{digits}"), &format!("{PREFIX}{digits}0")] {
            assert_eq!(SharedFile::open(name).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(SharedFile::open(&format!("{PREFIX}{digits}")).err().unwrap().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn foreign_files_are_refused() {
        let shared = SharedFile::create().unwrap();
        let path = folder().join(shared.name());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(SharedFile::open(shared.name()).is_err());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert!(SharedFile::open(shared.name()).is_ok());
        shared.unlink();
        assert!(!path.exists());

        let name = shared.name();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(SharedFile::open(name).is_err());
        std::fs::remove_file(&path).unwrap();
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        assert!(SharedFile::open(name).is_err(), "an empty file must not be mapped");
        std::fs::remove_file(&path).unwrap();
    }
}
