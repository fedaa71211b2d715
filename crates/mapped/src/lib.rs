//! Memory maps of files, and memory in large pages, behind a safe interface.
//!
//! Model files are larger than memory likes and are read by every rank of a machine, so they are mapped rather than
//! read: pages come in when touched and are shared between processes. The map itself needs one line of `unsafe`, and
//! this crate exists so that no other crate that reads files needs any.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// New memory, all zeros, in large pages where the system has them. It becomes read-only [`Bytes`] when it is filled.
pub struct Memory(memmap2::MmapMut);

impl Memory {
    /// `length` bytes, which take up memory only when they are touched.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(length: usize) -> io::Result<Memory> {
        // A map of nothing is refused.
        let map = memmap2::MmapMut::map_anon(length.max(1))?;
        // Without them everything works, only slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Memory(map))
    }

    /// The bytes, which do not change any more.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self.0)
    }
}

impl std::ops::Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A file that could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {path} into memory: {source}; check that it exists, is a regular file and is readable")]
pub struct MapError {
    /// The file asked for.
    pub path: PathBuf,
    /// What the operating system said.
    #[source]
    pub source: io::Error,
}

/// A file's bytes in a map, and the file itself, for those who would rather read than touch the map.
pub struct MappedFile {
    /// The map, which lives as long as the last clone or slice of these bytes.
    pub bytes: Bytes,
    /// The same file, open for reading.
    pub file: File,
}

/// Maps the whole of `path` for reading.
///
/// # Errors
/// When the file does not exist, is not a regular file, cannot be read, or the system refuses the map.
pub fn map_file(path: &Path) -> Result<MappedFile, MapError> {
    let failed = |source| MapError { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    if metadata.len() == 0 {
        return Ok(MappedFile { bytes: Bytes::new(), file });
    }
    // SAFETY: the map is private and read-only. Its bytes could still change, or vanish with SIGBUS, if another process
    // truncated or rewrote the file in place while it is mapped. Ropewalk's own store never does that: it writes to a
    // temporary name and renames. A user who overwrites a model in place while it runs breaks it, as with every
    // program that maps its model; nothing in Rust's type system can rule that out.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
    Ok(MappedFile { bytes: Bytes::from_owner(map), file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"strands").unwrap();
        assert_eq!(&map_file(&path).unwrap().bytes[..], b"strands");
        std::fs::write(&path, b"").unwrap();
        assert!(map_file(&path).unwrap().bytes.is_empty());
    }

    #[test]
    fn memory_is_zero_and_keeps_what_is_written() {
        let mut memory = Memory::new(5000).unwrap();
        assert!(memory.iter().all(|&byte| byte == 0));
        memory[4999] = 7;
        let bytes = memory.into_bytes();
        assert_eq!((bytes.len(), bytes[4998], bytes[4999]), (5000, 0, 7));
        assert!(Memory::new(0).is_ok());
    }

    #[test]
    fn names_the_path_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.gguf");
        assert!(map_file(&missing).err().unwrap().to_string().contains("missing.gguf"));
        assert!(map_file(folder.path()).err().unwrap().to_string().contains("not a regular file"));
    }
}
