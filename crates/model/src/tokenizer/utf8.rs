//! Bytes to text, a piece at a time.

/// Turns a stream of bytes into text without ever showing part of a character.
///
/// Tokens can end inside a character, so the bytes of a character that is not complete yet are held back. Bytes that
/// can never become a character turn into U+FFFD, as in [`String::from_utf8_lossy`].
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, at most three bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Takes more bytes and returns the characters that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let incomplete = incomplete_suffix(&self.held);
        let rest = self.held.split_off(self.held.len() - incomplete);
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held = rest;
        text
    }

    /// Ends the stream and returns what was held back; U+FFFD if it is part of a character.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How many bytes at the end of `bytes` may be the beginning of a character whose rest is still to come.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    // A character has at most four bytes, so an incomplete one has at most three.
    let earliest = bytes.len().saturating_sub(3);
    for start in (earliest..bytes.len()).rev() {
        if let Err(error) = std::str::from_utf8(&bytes[start..])
            && error.valid_up_to() == 0
            && error.error_len().is_none()
        {
            return bytes.len() - start;
        }
    }
    0
}
