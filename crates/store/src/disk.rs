//! The disk that downloads are written to: a seam, so that tests can fill it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Opens files for writing and knows how much room is left.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Opens a file for appending, creating it if need be; `empty` drops what it holds.
    fn open(&self, path: &Path, empty: bool) -> io::Result<Box<dyn Output>>;

    /// Bytes that may still be written to the folder's file system, where the system tells.
    fn free_bytes(&self, folder: &Path) -> Option<u64>;
}

/// An open file.
pub(crate) trait Output: Write {
    /// Returns once the bytes have reached the device.
    fn sync(&mut self) -> io::Result<()>;
}

/// The system's own file systems.
#[derive(Debug)]
pub(crate) struct SystemDisk;

impl Disk for SystemDisk {
    fn open(&self, path: &Path, empty: bool) -> io::Result<Box<dyn Output>> {
        let mut options = OpenOptions::new();
        if empty {
            options.write(true).truncate(true);
        } else {
            options.append(true);
        }
        Ok(Box::new(options.create(true).open(path)?))
    }

    #[cfg(unix)]
    fn free_bytes(&self, folder: &Path) -> Option<u64> {
        let figures = rustix::fs::statvfs(folder).ok()?;
        Some(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    #[cfg(not(unix))]
    fn free_bytes(&self, _folder: &Path) -> Option<u64> {
        None
    }
}

impl Output for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Makes a rename or a new file in `folder` outlast a loss of power. Not every file system can; none needs to fail
/// for it.
pub(crate) fn sync_folder(folder: &Path) {
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::debug!("cannot sync {}: {error}", folder.display());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A disk that has room for so many more bytes, over all files.
    #[derive(Clone, Debug)]
    pub(crate) struct SmallDisk {
        pub(crate) room: Arc<AtomicU64>,
        /// What it claims to have free.
        pub(crate) claimed: Option<u64>,
    }

    struct SmallFile {
        file: Box<dyn Output>,
        room: Arc<AtomicU64>,
    }

    impl Disk for SmallDisk {
        fn open(&self, path: &Path, empty: bool) -> io::Result<Box<dyn Output>> {
            let file = SystemDisk.open(path, empty)?;
            Ok(Box::new(SmallFile { file, room: self.room.clone() }))
        }

        fn free_bytes(&self, _folder: &Path) -> Option<u64> {
            self.claimed
        }
    }

    impl Write for SmallFile {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.room.load(Ordering::Relaxed).min(bytes.len() as u64);
            if room == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let written = self.file.write(&bytes[..room as usize])?;
            self.room.fetch_sub(written as u64, Ordering::Relaxed);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.file.flush()
        }
    }

    impl Output for SmallFile {
        fn sync(&mut self) -> io::Result<()> {
            self.file.sync()
        }
    }

    #[test]
    fn the_system_disk_has_room_and_appends() {
        let folder = tempfile::tempdir().unwrap();
        assert!(SystemDisk.free_bytes(folder.path()).is_none_or(|free| free > 0));
        let path = folder.path().join("file");
        for (bytes, empty) in [(b"one", true), (b"two", false)] {
            SystemDisk.open(&path, empty).unwrap().write_all(bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"onetwo");
        SystemDisk.open(&path, true).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
