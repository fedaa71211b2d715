//! Byte-level BPE: words are cut from the text, then their bytes are joined by ranked merges.

use std::collections::HashSet;

use hashbrown::HashMap as FastMap;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::index::PieceIndex;
use super::merge::{Merge, Merger};
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::gguf::{Metadata, quoted};
use crate::{Gguf, ModelError};

const MERGES: &str = "tokenizer.ggml.merges";

/// The rules of a byte-level tokenizer.
#[derive(Debug)]
pub(super) struct ByteLevel {
    words: PreTokenizer,
    index: PieceIndex,
    /// The token of every single byte.
    bytes: [Option<u32>; 256],
    /// For two tokens, the left in the upper half of the key: what they become.
    merges: FastMap<u64, Merge>,
}

impl ByteLevel {
    pub(super) fn from_gguf(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<ByteLevel, ModelError> {
        let metadata = gguf.metadata();
        let words = PreTokenizer::from_metadata(metadata)?;
        let in_alphabet = |id| vocabulary.text(id).chars().all(|character| byte_of_character(character).is_some());
        let index = PieceIndex::new(vocabulary, in_alphabet);
        // The token named as unknown may be a control token, which text must never turn into.
        let unknown = vocabulary.unknown.filter(|&id| vocabulary.kind(id) == TokenKind::Unknown);
        let bytes = std::array::from_fn(|byte| index.find(vocabulary, &[byte as u8]).or(unknown));
        let merges = merges(metadata, vocabulary, &index)?;
        Ok(ByteLevel { words, index, bytes, merges })
    }

    /// Whether texts of these models begin with the BOS token unless the file says otherwise.
    pub(super) fn adds_bos(&self) -> bool {
        self.words.adds_bos()
    }

    /// Appends the tokens of `text`. Bytes that the vocabulary has no token for are left out, as other implementations
    /// do: a few vocabularies lack control characters.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        if self.words.composes() && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            self.encode_words(vocabulary, &text.nfc().collect::<String>(), out);
        } else {
            self.encode_words(vocabulary, text, out);
        }
    }

    fn encode_words(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        self.words.split(text, |word| {
            if self.words.takes_whole_words()
                && let Some(id) = self.index.find(vocabulary, word)
            {
                out.push(id);
                return;
            }
            merger.clear();
            for (start, &byte) in word.iter().enumerate() {
                if let Some(id) = self.bytes[usize::from(byte)] {
                    merger.push(id, start, 1);
                }
            }
            merger.run(|left, right| self.merges.get(&pair(left.id, right.id)).copied());
            out.extend(merger.tokens());
        });
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Reads the merges, `left right` in the order of their rank, and finds what each makes.
fn merges(metadata: &Metadata, vocabulary: &Vocabulary, index: &PieceIndex) -> Result<FastMap<u64, Merge>, ModelError> {
    let lines = metadata.get_array_str(MERGES)?;
    let is_special = |&id: &u32| vocabulary.kind(id) != TokenKind::Normal;
    let special: HashSet<&str> = vocabulary.ids().filter(is_special).map(|id| vocabulary.text(id)).collect();
    let mut merges = FastMap::with_capacity(lines.len());
    let mut whole = String::new();
    let mut bytes = Vec::new();
    for (rank, line) in (0..).zip(lines.iter()) {
        let bad = |problem| metadata.bad(MERGES, format!("has {} at position {rank}, {problem}", quoted(line)));
        let Some((left, right)) = line.split_once(' ') else {
            return Err(bad("which is not two tokens with a space between them"));
        };
        whole.clear();
        whole.extend([left, right]);
        bytes.clear();
        bytes.extend(left.chars().map_while(byte_of_character));
        let middle = bytes.len();
        bytes.extend(right.chars().map_while(byte_of_character));
        let find = |bytes: &[u8]| index.find(vocabulary, bytes);
        match (find(&bytes[..middle]), find(&bytes[middle..]), find(&bytes)) {
            (Some(left), Some(right), Some(id)) if vocabulary.text(id) == whole => {
                merges.entry(pair(left, right)).or_insert(Merge { rank, id });
            }
            // Text must never turn into a control token, whatever the merges say.
            _ if [left, right, &whole].iter().any(|text| special.contains(text)) => {}
            _ => return Err(bad("but the vocabulary lacks one of the halves or the whole")),
        }
    }
    Ok(merges)
}

/// The last character that stands for a byte.
const LAST_CHARACTER: usize = 0x143;

/// The byte that each of the first characters of Unicode stands for.
const BYTES: [Option<u8>; LAST_CHARACTER + 1] = {
    let mut table = [None; LAST_CHARACTER + 1];
    let mut moved = 0;
    let mut byte = 0;
    while byte < 256 {
        // Visible characters of Latin-1 stand for themselves, the others for the characters after Latin-1.
        let character = if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            byte
        } else {
            moved += 1;
            0xff + moved
        };
        table[character] = Some(byte as u8);
        byte += 1;
    }
    table
};

/// The byte that a character of a byte-level vocabulary stands for; none if it is outside the alphabet.
pub(super) fn byte_of_character(character: char) -> Option<u8> {
    BYTES.get(character as usize).copied().flatten()
}
