//! What the cache remembers of a model: a small JSON file beside it.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{Digest, StoreError};

/// The name of the file.
pub(crate) const RECORD_FILE: &str = "model.json";

/// The version of the format. Records of other versions count as absent: their models are fetched again.
const FORMAT: u32 = 1;

/// Longest record that is read: a split model of a thousand parts stays far below.
const LONGEST: u64 = 1 << 20;

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Where it lies. In the record itself, files of the cache's own are relative to the record's folder.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, computed when it arrived; for local files it is not known.
    pub digest: Option<Digest>,
}

/// What was fetched, from where, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// The source as text.
    pub(crate) source: String,
    /// The model's name for people.
    pub(crate) name: String,
    /// The files, in order; the first one is the model's path.
    pub(crate) files: Vec<ModelFile>,
    /// Seconds since 1970.
    pulled: u64,
}

impl Record {
    /// A record of now.
    pub(crate) fn new(source: String, name: String, files: Vec<ModelFile>) -> Record {
        let pulled = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Record { format: FORMAT, source, name, files, pulled }
    }

    /// When the model was fetched.
    pub(crate) fn pulled(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(std::time::Duration::from_secs(self.pulled)).unwrap_or(UNIX_EPOCH)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Writes the record into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(RECORD_FILE);
        let text = serde_json::to_string_pretty(self).map_err(|error| StoreError::io("write", &path)(error.into()))?;
        let written = fs::write(&path, text + "\n").and_then(|()| fs::File::open(&path)?.sync_all());
        written.map_err(StoreError::cache_io("write", &path))
    }

    /// Reads the record of a folder, with the paths of its files made absolute.
    ///
    /// `None` if there is none, or none that this version of the program understands.
    pub(crate) fn read(folder: &Path) -> Option<Record> {
        let path = folder.join(RECORD_FILE);
        let text = match read_bounded(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", path.display());
                return None;
            }
        };
        let record = serde_json::from_str::<Record>(&text).map_err(|error| error.to_string());
        match record.and_then(|record| record.located(folder)) {
            Ok(record) => Some(record),
            Err(problem) => {
                tracing::warn!("{} is ignored: {problem}", path.display());
                None
            }
        }
    }

    fn located(mut self, folder: &Path) -> Result<Record, String> {
        if self.format != FORMAT {
            return Err(format!("its format is {}, this program knows {FORMAT}", self.format));
        }
        if self.files.is_empty() {
            return Err("it names no files".to_owned());
        }
        for file in &mut self.files {
            let mut components = file.path.components();
            let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
            if plain {
                file.path = folder.join(&file.path);
            } else if !file.path.is_absolute() {
                return Err(format!("it names the file {}", file.path.display()));
            }
        }
        Ok(self)
    }

    /// Whether all files are there with their sizes.
    pub(crate) fn is_whole(&self) -> bool {
        self.files
            .iter()
            .all(|file| fs::metadata(&file.path).is_ok_and(|found| found.is_file() && found.len() == file.bytes))
    }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str) -> Record {
        let file = ModelFile { path: path.into(), bytes: 3, digest: Some(Digest::new([7; 32])) };
        Record::new("pip:a".into(), "a".into(), vec![file])
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path()), None);
        record("m.gguf").write(folder.path()).unwrap();
        let read = Record::read(folder.path()).unwrap();
        assert_eq!(read.files[0].path, folder.path().join("m.gguf"));
        assert_eq!(read.files[0].digest, Some(Digest::new([7; 32])));
        assert!(!read.is_whole());
        fs::write(folder.path().join("m.gguf"), "abc").unwrap();
        assert!(read.is_whole());
        fs::write(folder.path().join("m.gguf"), "abcd").unwrap();
        assert!(!read.is_whole());
    }

    #[test]
    fn records_that_lead_elsewhere_or_are_unknown_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["../m.gguf", "a/m.gguf", "..", "."] {
            record(path).write(folder.path()).unwrap();
            assert_eq!(Record::read(folder.path()), None, "{path}");
        }
        let newer = Record { format: FORMAT + 1, ..record("m.gguf") };
        newer.write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()), None);
        for text in ["", "{}", "[1]", "{\"format\":1,\"source\":\"a\",\"name\":\"a\",\"files\":[],\"pulled\":0}"] {
            fs::write(folder.path().join(RECORD_FILE), text).unwrap();
            assert_eq!(Record::read(folder.path()), None, "{text}");
        }
    }
}
