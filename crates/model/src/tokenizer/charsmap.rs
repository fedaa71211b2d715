//! SentencePiece's precompiled normalizer: a table that says which stretches of text become which.
//!
//! The table is a length, a double-array trie of as many bytes (Darts-clone's layout, little endian) and a block of
//! replacements, each ended by a zero byte. The trie maps a stretch to the place of its replacement.

use unicode_segmentation::UnicodeSegmentation;

use crate::ModelError;
use crate::gguf::{Array, Metadata, Value};

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// A normalizer, checked as far as it can be ahead of use.
#[derive(Debug)]
pub(super) struct CharsMap {
    trie: Vec<u32>,
    replacements: String,
}

/// The longest stretch that is looked up as a whole.
const LONGEST_CLUSTER: usize = 5;

impl CharsMap {
    /// Reads the table of a model, if it has one.
    pub(super) fn from_metadata(metadata: &Metadata) -> Result<Option<CharsMap>, ModelError> {
        let bytes: Vec<u8> = match metadata.find(KEY) {
            None => return Ok(None),
            Some(Value::Array(Array::U8(bytes))) => bytes.to_vec(),
            Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|&byte| byte as u8).collect(),
            Some(other) => {
                return Err(metadata.bad(KEY, format!("holds {} where bytes are expected", other.type_name())));
            }
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        CharsMap::parse(&bytes).map(Some).map_err(|problem| metadata.bad(KEY, problem))
    }

    fn parse(bytes: &[u8]) -> Result<CharsMap, &'static str> {
        let (length, rest) = bytes.split_first_chunk().ok_or("is too short to be a normalization table")?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (trie, replacements) = rest.split_at_checked(length).ok_or("says that it is longer than it is")?;
        let (units, []) = trie.as_chunks() else {
            return Err("has a trie whose length is not a multiple of 4");
        };
        let replacements = str::from_utf8(replacements).map_err(|_| "has replacements that are not UTF-8")?.to_owned();
        Ok(CharsMap { trie: units.iter().map(|&unit| u32::from_le_bytes(unit)).collect(), replacements })
    }

    /// Applies the table: to clusters of characters that belong together where they are short and it has an entry,
    /// else to single characters.
    pub(super) fn normalize(&self, text: &str) -> String {
        let mut normalized = String::with_capacity(text.len());
        for cluster in text.graphemes(true) {
            let whole = (cluster.len() <= LONGEST_CLUSTER).then(|| self.replacement(cluster)).flatten();
            if let Some(replacement) = whole {
                normalized.push_str(replacement);
                continue;
            }
            for (start, character) in cluster.char_indices() {
                let single = &cluster[start..start + character.len_utf8()];
                normalized.push_str(self.replacement(single).unwrap_or(single));
            }
        }
        normalized
    }

    /// The replacement of the shortest entry that `text` begins with. It stands for all of `text`: this is how the
    /// models were trained.
    fn replacement(&self, text: &str) -> Option<&str> {
        let mut position = offset(*self.trie.first()?);
        for byte in text.bytes().take_while(|&byte| byte != 0) {
            position ^= usize::from(byte);
            let unit = *self.trie.get(position)?;
            // A unit that holds a value has its highest bit set and so matches no byte.
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                return None;
            }
            position ^= offset(unit);
            let has_value = unit >> 8 & 1 == 1;
            if has_value {
                let value = *self.trie.get(position)? & !(1 << 31);
                let replacement = self.replacements.get(usize::try_from(value).ok()?..)?;
                return replacement.split('\0').next();
            }
        }
        None
    }
}

/// Where the children of a unit are, relative to it.
fn offset(unit: u32) -> usize {
    // The offset has 21 bits and can be meant in units of 256.
    let shift = (unit & 1 << 9) >> 6;
    ((unit >> 10) as usize) << shift
}
