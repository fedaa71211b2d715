//! A file on its way in: written under a temporary name, hashed as it grows, verified before it may land.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::disk::{Disk, Output};
use crate::error::is_full;
use crate::{Digest, Progress, StoreError};

/// Bytes read and written at once.
const CHUNK_BYTES: usize = 1 << 18;

/// What a file must turn out to be, as far as its source says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) bytes: Option<u64>,
    pub(crate) digest: Option<Digest>,
}

/// The unfinished file. Dropping it deletes what was written, unless [`keep`](Incoming::keep) was called.
pub(crate) struct Incoming<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    what: String,
    output: Box<dyn Output>,
    hasher: Sha256,
    written: u64,
    kept: bool,
}

/// Why copying stopped early.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The source failed; another try may go on from here.
    Read(io::Error),
    /// The destination failed, or the caller cancelled; nothing to try again.
    Fatal(StoreError),
}

impl<'a> Incoming<'a> {
    /// Starts an empty file; `what` names it in errors.
    pub(crate) fn create(disk: &'a dyn Disk, path: &Path, what: &str) -> Result<Incoming<'a>, StoreError> {
        let output = disk.open(path, true).map_err(StoreError::cache_io("create", path))?;
        Ok(Incoming {
            disk,
            path: path.to_owned(),
            what: what.to_owned(),
            output,
            hasher: Sha256::new(),
            written: 0,
            kept: false,
        })
    }

    /// Goes on with what an earlier try left at `path`, or starts anew if there is nothing.
    pub(crate) fn resume(
        disk: &'a dyn Disk,
        path: &Path,
        what: &str,
        progress: &dyn Progress,
    ) -> Result<Incoming<'a>, StoreError> {
        let (written, hasher) = match File::open(path) {
            Ok(file) => hash_all(file, path, progress)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Incoming::create(disk, path, what),
            Err(error) => return Err(StoreError::cache_io("read", path)(error)),
        };
        let output = disk.open(path, false).map_err(StoreError::cache_io("append to", path))?;
        Ok(Incoming { disk, path: path.to_owned(), what: what.to_owned(), output, hasher, written, kept: false })
    }

    /// Bytes that are there.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Drops what is there.
    pub(crate) fn restart(&mut self) -> Result<(), StoreError> {
        self.output = self.disk.open(&self.path, true).map_err(StoreError::cache_io("create", &self.path))?;
        self.hasher = Sha256::new();
        self.written = 0;
        Ok(())
    }

    /// Refuses early if the disk cannot hold `more` bytes.
    pub(crate) fn reserve(&self, more: u64) -> Result<(), StoreError> {
        let folder = self.path.parent().unwrap_or(&self.path);
        match self.disk.free_bytes(folder) {
            Some(free) if free < more => Err(StoreError::NoSpace {
                folder: folder.to_owned(),
                what: self.what.clone(),
                needed: Some(more),
                available: Some(free),
            }),
            _ => Ok(()),
        }
    }

    /// Appends what `reader` gives, at most `limit` bytes; returns their count. `seen` gets every piece as well.
    ///
    /// # Errors
    /// With [`CopyError::Read`] what arrived before counts and stays; a full disk deletes the file when it is dropped.
    pub(crate) fn append(
        &mut self,
        reader: &mut dyn Read,
        limit: u64,
        progress: &dyn Progress,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, CopyError> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut copied = 0;
        while copied < limit {
            if progress.is_cancelled() {
                return Err(CopyError::Fatal(StoreError::Cancelled));
            }
            let room = buffer.len().min(usize::try_from(limit - copied).unwrap_or(usize::MAX));
            let count = match reader.read(&mut buffer[..room]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(CopyError::Read(error)),
            };
            let piece = &buffer[..count];
            let needed = (limit < u64::MAX).then_some(limit - copied);
            self.write(piece, needed).map_err(CopyError::Fatal)?;
            seen(piece);
            copied += count as u64;
            progress.advance(count as u64);
        }
        Ok(copied)
    }

    fn write(&mut self, piece: &[u8], needed: Option<u64>) -> Result<(), StoreError> {
        if let Err(error) = self.output.write_all(piece) {
            // Part of the piece may have been written: the file is no longer what the hash says, hence never kept.
            self.kept = false;
            return Err(self.write_error(error, needed));
        }
        self.hasher.update(piece);
        self.written += piece.len() as u64;
        Ok(())
    }

    fn write_error(&self, error: io::Error, needed: Option<u64>) -> StoreError {
        if is_full(&error) {
            let folder = self.path.parent().unwrap_or(&self.path).to_owned();
            return StoreError::NoSpace { folder, what: self.what.clone(), needed, available: None };
        }
        StoreError::cache_io("write", &self.path)(error)
    }

    /// Verifies the whole and writes it through to the device; the file then stays, and its size and digest are
    /// returned.
    ///
    /// # Errors
    /// The wrong size or digest; the file is deleted.
    pub(crate) fn finish(mut self, expected: Expected) -> Result<(u64, Digest), StoreError> {
        self.kept = false;
        let found = Digest::new(std::mem::take(&mut self.hasher).finalize().into());
        if let Some(expected) = expected.bytes.filter(|&bytes| bytes != self.written) {
            return Err(StoreError::WrongSize { file: self.what.clone(), expected, found: self.written });
        }
        if let Some(expected) = expected.digest.filter(|&digest| digest != found) {
            return Err(StoreError::WrongDigest { file: self.what.clone(), expected, found });
        }
        self.output.flush().and_then(|()| self.output.sync()).map_err(|error| self.write_error(error, None))?;
        self.kept = true;
        Ok((self.written, found))
    }

    /// From now on, what is there stays for the next try when this is dropped.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove the unfinished file {}: {error}", self.path.display());
        }
    }
}

/// The size and digest of a file that is already there.
pub(crate) fn digest_of(path: &Path, progress: &dyn Progress) -> Result<(u64, Digest), StoreError> {
    let file = File::open(path).map_err(StoreError::io("read", path))?;
    let (bytes, hasher) = hash_all(file, path, progress)?;
    Ok((bytes, Digest::new(hasher.finalize().into())))
}

fn hash_all(mut file: File, path: &Path, progress: &dyn Progress) -> Result<(u64, Sha256), StoreError> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        if progress.is_cancelled() {
            return Err(StoreError::Cancelled);
        }
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok((bytes, hasher)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(StoreError::io("read", path)(error)),
        };
        hasher.update(&buffer[..count]);
        bytes += count as u64;
        progress.advance(count as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::Silent;
    use crate::disk::SystemDisk;
    use crate::disk::tests::SmallDisk;

    const DATA: &[u8] = b"some bytes of a model";

    fn append(incoming: &mut Incoming<'_>, mut bytes: &[u8]) -> Result<u64, CopyError> {
        incoming.append(&mut bytes, u64::MAX, &Silent, &mut |_| {})
    }

    fn sha256(bytes: &[u8]) -> Digest {
        Digest::new(Sha256::digest(bytes).into())
    }

    #[test]
    fn what_was_kept_is_resumed_and_the_whole_is_verified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut first = Incoming::resume(&SystemDisk, &path, "model", &Silent).unwrap();
        append(&mut first, &DATA[..7]).unwrap();
        first.keep();
        drop(first);

        let mut second = Incoming::resume(&SystemDisk, &path, "model", &Silent).unwrap();
        assert_eq!(second.written(), 7);
        append(&mut second, &DATA[7..]).unwrap();
        let expected = Expected { bytes: Some(DATA.len() as u64), digest: Some(sha256(DATA)) };
        assert_eq!(second.finish(expected).unwrap(), (DATA.len() as u64, sha256(DATA)));
        assert_eq!(fs::read(&path).unwrap(), DATA);
        assert_eq!(digest_of(&path, &Silent).unwrap(), (DATA.len() as u64, sha256(DATA)));
    }

    #[test]
    fn the_wrong_bytes_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let wrong = [
            Expected { bytes: Some(3), digest: None },
            Expected { bytes: Some(DATA.len() as u64), digest: Some(sha256(b"other")) },
        ];
        for expected in wrong {
            let mut incoming = Incoming::create(&SystemDisk, &path, "model").unwrap();
            append(&mut incoming, DATA).unwrap();
            incoming.keep();
            let error = incoming.finish(expected).unwrap_err();
            assert!(matches!(error, StoreError::WrongSize { .. } | StoreError::WrongDigest { .. }), "{error}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_restart_forgets_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut incoming = Incoming::create(&SystemDisk, &path, "model").unwrap();
        append(&mut incoming, b"something else entirely").unwrap();
        incoming.restart().unwrap();
        append(&mut incoming, DATA).unwrap();
        assert_eq!(incoming.finish(Expected::default()).unwrap(), (DATA.len() as u64, sha256(DATA)));
        assert_eq!(fs::read(&path).unwrap(), DATA);
    }

    #[test]
    fn a_full_disk_is_named_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let disk = SmallDisk { room: Arc::new(AtomicU64::new(5)), claimed: Some(5) };
        let mut incoming = Incoming::create(&disk, &path, "model.gguf").unwrap();
        let error = incoming.reserve(1 << 20).unwrap_err().to_string();
        assert!(error.contains("1.0 MiB") && error.contains("5 bytes are free"), "{error}");
        incoming.keep();
        let CopyError::Fatal(error) = append(&mut incoming, DATA).unwrap_err() else { panic!("not fatal") };
        drop(incoming);
        let error = error.to_string();
        assert!(error.contains("no space left") && error.contains(&*folder.path().to_string_lossy()), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn cancelling_ends_the_copy() {
        struct Cancelled;
        impl Progress for Cancelled {
            fn start(&self, _: &str, _: Option<u64>) {}
            fn advance(&self, _: u64) {}
            fn finish(&self) {}
            fn is_cancelled(&self) -> bool {
                true
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut incoming = Incoming::create(&SystemDisk, &path, "model").unwrap();
        let error = incoming.append(&mut &DATA[..], u64::MAX, &Cancelled, &mut |_| {}).unwrap_err();
        assert!(matches!(error, CopyError::Fatal(StoreError::Cancelled)));
    }
}
