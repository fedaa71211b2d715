//! A reading position in the header of a GGUF file. Nothing is read past the end and nothing is believed: a count is
//! checked against the bytes that are left before room for it is made.

use std::path::Path;

use super::value::Strings;
use crate::ModelError;

/// What to do about a file that ends too early.
pub(super) const DOWNLOAD_AGAIN: &str = "the file is truncated or damaged, download it again";
/// What to do about a file that is whole but wrong.
pub(super) const CONVERT_AGAIN: &str = "the file is damaged or badly made, download or convert it again";

/// Where in the file the reader is, and what it is reading, for messages.
pub(super) struct Cursor<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    position: usize,
    /// The part of the file that is being read: the header, a key or a tensor.
    place: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Cursor { file, bytes, position: 0, place: "header".to_owned() }
    }

    /// Names the part of the file that is read from here on.
    pub(super) fn enter(&mut self, place: String) {
        self.place = place;
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// An error about the bytes that begin at `offset`.
    pub(super) fn damaged(&self, offset: usize, problem: impl Into<String>, advice: &'static str) -> ModelError {
        ModelError::Damaged {
            file: self.file.to_owned(),
            place: self.place.clone(),
            offset: offset as u64,
            problem: problem.into(),
            advice,
        }
    }

    /// An error about something in the file that is well formed but not supported.
    pub(super) fn unsupported(&self, what: String, advice: String) -> ModelError {
        ModelError::Unsupported { file: self.file.to_owned(), what, advice }
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], ModelError> {
        if count > self.remaining() {
            let problem = format!("{count} bytes should follow but the file has only {} more", self.remaining());
            return Err(self.damaged(self.position, problem, DOWNLOAD_AGAIN));
        }
        let taken = &self.bytes[self.position..self.position + count];
        self.position += count;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ModelError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, ModelError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of things that take at least `smallest` bytes each, so that a count which cannot be true is refused
    /// before anything is set aside for it.
    pub(super) fn count(&mut self, what: &str, smallest: usize) -> Result<usize, ModelError> {
        let start = self.position;
        let count = self.u64()?;
        let most = self.remaining() / smallest;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => {
                let problem = format!("{count} {what} are announced but the rest of the file has room for {most}");
                Err(self.damaged(start, problem, DOWNLOAD_AGAIN))
            }
        }
    }

    /// A length and as many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, ModelError> {
        let length = self.count(&format!("bytes of {what}"), 1)?;
        let start = self.position;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|error| {
            let problem = format!("{what} is not valid UTF-8");
            self.damaged(start + error.valid_up_to(), problem, CONVERT_AGAIN)
        })
    }

    /// `count` strings, which [`Cursor::count`] has found possible.
    pub(super) fn strings(&mut self, count: usize) -> Result<Strings, ModelError> {
        // The text is measured first so that it is copied once, into memory of the right size.
        let start = self.position;
        let mut text_bytes = 0;
        for _ in 0..count {
            let length = self.count("bytes of text", 1)?;
            self.take(length)?;
            text_bytes += length;
        }
        self.position = start;
        let mut strings = Strings::with_capacity(count, text_bytes);
        for _ in 0..count {
            strings.push(self.string("text")?);
        }
        Ok(strings)
    }
}
