//! The file through which two processes come to share memory.
//!
//! On Linux it is a file without a name, sealed so that nobody can make it shorter: a shorter file would end whoever
//! touches the missing memory by a signal. The other rank opens it through this process's folder in `/proc`. Nothing is
//! left behind however the processes end, and the size of `/dev/shm`, which is small in containers, does not matter.
//!
//! That does not work between containers that see different processes, nor on other systems. There the file has a name in
//! `/dev/shm` or the folder of temporary files, until both have mapped it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::mapping::{Mapping, TOKEN_BYTES};
use crate::secret::{hex, random_bytes};

const NAMED: &str = "ropewalk-";
const SEALED: &str = "process-";
/// Hexadecimal digits of a token, which is a part of every name.
const TOKEN_DIGITS: usize = 2 * TOKEN_BYTES;

/// Memory that both ranks of a pair have mapped.
pub(crate) struct SharedFile {
    name: String,
    mapping: Mapping,
    /// What the other rank opens, where it has no path of its own.
    _file: File,
    path: Option<PathBuf>,
}

/// The bytes of each ring of a pair when so many ranks are on this host.
///
/// In a ring that is longer than both sides' own caches, lines have moved to the cache that they share by the time they
/// are written again, which is nearer than the other side's own: large messages take up to 40% less time. With many
/// ranks, and so many more pairs, memory and the shared cache matter more.
pub(crate) fn ring_bytes(ranks: usize) -> usize {
    match ranks {
        0..=2 => 4 << 20,
        3..=4 => 1 << 20,
        _ => 256 << 10,
    }
}

impl SharedFile {
    /// Creates memory of two rings of `ring_bytes` bytes that has no name, which the other rank finds through this
    /// process.
    #[cfg(target_os = "linux")]
    pub(crate) fn sealed(ring_bytes: usize) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let descriptor = memfd_create("ropewalk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(descriptor);
        write_zeros(&mut file, ring_bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&file)?;
        let token = random_token()?;
        mapping.set_token(token);
        let name = format!("{SEALED}{}-{}-{}", std::process::id(), file.as_raw_fd(), token_digits(token));
        Ok(Self { name, mapping, _file: file, path: None })
    }

    /// There are no such files on this system.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sealed(_ring_bytes: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Creates and maps a file of two rings of `ring_bytes` bytes that only this user can open. It has a name until
    /// [`SharedFile::unlink`].
    pub(crate) fn named(ring_bytes: usize) -> io::Result<Self> {
        let token = random_token()?;
        let name = format!("{NAMED}{}", token_digits(token));
        let path = folder().join(&name);
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let mapped = write_zeros(&mut file, ring_bytes).and_then(|()| Mapping::new(&file));
        if mapped.is_err() {
            remove(&path);
        }
        let mapping = mapped?;
        mapping.set_token(token);
        Ok(Self { name, mapping, _file: file, path: Some(path) })
    }

    /// Maps the file that the other rank has created. Its name comes from there, so that it is checked to be the name
    /// of such a file, and the file to be one.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let (path, token) = locate(name).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file of shared memory of this system")
        })?;
        let is_sealed = name.starts_with(SEALED);
        // Whatever else it may be, opening it must not wait. A link with a name of ours, put there by someone else, must
        // not lead elsewhere; what `/proc` has are such links.
        let mut flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        flags.set(rustix::fs::OFlags::NOFOLLOW, !is_sealed);
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let metadata = file.metadata()?;
        let is_ours = metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw();
        let is_safe = if is_sealed { keeps_its_length(&file) } else { metadata.mode() & 0o777 == 0o600 };
        if !is_ours || !is_safe {
            return Err(io::Error::other("its owner, mode or seals are not what the other rank would give it"));
        }
        let mapping = Mapping::new(&file)?;
        if token_digits(mapping.token()) != token {
            return Err(io::Error::other("it is not the file that the other rank has created"));
        }
        Ok(Self { name: name.to_owned(), mapping, _file: file, path: None })
    }

    /// The name by which the other rank opens it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes the name away. The memory lives until both ranks have let go of it.
    pub(crate) fn unlink(&mut self) {
        if let Some(path) = self.path.take() {
            remove(&path);
        }
    }

    pub(super) fn into_mapping(self) -> Mapping {
        self.mapping
    }
}

/// Where a file of this name is, and its token. `None` for any other name.
fn locate(name: &str) -> Option<(PathBuf, &str)> {
    let (path, token) = if let Some(token) = name.strip_prefix(NAMED) {
        (folder().join(name), token)
    } else {
        let (process, rest) = name.strip_prefix(SEALED)?.split_once('-')?;
        let (descriptor, token) = rest.split_once('-')?;
        // Numbers, so that they cannot lead elsewhere.
        let (process, descriptor) = (process.parse::<u32>().ok()?, descriptor.parse::<u32>().ok()?);
        (PathBuf::from(format!("/proc/{process}/fd/{descriptor}")), token)
    };
    (token.len() == TOKEN_DIGITS && token.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some((path, token))
}

#[cfg(target_os = "linux")]
fn keeps_its_length(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(rustix::fs::SealFlags::SHRINK))
}

#[cfg(not(target_os = "linux"))]
fn keeps_its_length(_file: &File) -> bool {
    false
}

fn random_token() -> io::Result<[u64; TOKEN_BYTES / 8]> {
    let halves = || random_bytes::<8>().map(u64::from_le_bytes).map_err(io::Error::other);
    Ok([halves()?, halves()?])
}

fn token_digits(token: [u64; TOKEN_BYTES / 8]) -> String {
    token.iter().map(|word| hex(&word.to_le_bytes())).collect()
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
fn write_zeros(file: &mut File, ring_bytes: usize) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    let mut left = Mapping::file_bytes(ring_bytes);
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

    const RING_BYTES: usize = 256 << 10;

    #[test]
    fn foreign_names_are_refused() {
        let digits = "0".repeat(TOKEN_DIGITS);
        let names = [
            String::new(),
            NAMED.to_owned(),
            "/etc/passwd".to_owned(),
            format!("../{NAMED}{digits}"),
            format!("{NAMED}{digits}0"),
            format!("{SEALED}1-2-3"),
            format!("{SEALED}self-2-{digits}"),
            format!("{SEALED}1-../2-{digits}"),
        ];
        for name in names {
            assert_eq!(SharedFile::open(&name).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(SharedFile::open(&format!("{NAMED}{digits}")).err().unwrap().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn foreign_files_are_refused() {
        let mut shared = SharedFile::named(RING_BYTES).unwrap();
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

    #[cfg(target_os = "linux")]
    #[test]
    fn files_without_a_name_are_found_and_keep_their_length() {
        let shared = SharedFile::sealed(RING_BYTES).unwrap();
        let same = SharedFile::open(shared.name()).unwrap();
        assert_eq!(same.mapping.token(), shared.mapping.token());
        assert!(same._file.set_len(0).is_err() && same._file.set_len(1 << 30).is_err());

        // One of this process's other files, and a file of the same kind that is another one.
        let other = File::open("/proc/self/exe").unwrap();
        let digits = "0".repeat(TOKEN_DIGITS);
        for descriptor in [other.as_raw_fd(), shared._file.as_raw_fd()] {
            let name = format!("{SEALED}{}-{descriptor}-{digits}", std::process::id());
            assert!(SharedFile::open(&name).is_err(), "{name}");
        }
        let not_sealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let not_sealed = File::from(not_sealed);
        not_sealed.set_len(Mapping::file_bytes(RING_BYTES) as u64).unwrap();
        let name = format!("{SEALED}{}-{}-{digits}", std::process::id(), not_sealed.as_raw_fd());
        assert!(SharedFile::open(&name).is_err());
    }
}
