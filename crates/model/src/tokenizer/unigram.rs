//! Unigram tokenization: of all ways to spell a text with tokens, the one whose scores add up to the most.

use std::cmp::Ordering;

use super::charsmap::CharsMap;
use super::sentencepiece::byte_tokens;
use super::vocabulary::{SPACE_MARK, TokenKind, Vocabulary};
use crate::{Gguf, ModelError};

/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The rules of a SentencePiece tokenizer of the unigram type.
#[derive(Debug)]
pub(super) struct Unigram {
    normalizer: Option<CharsMap>,
    /// The normal tokens in the order of their texts.
    sorted: Vec<u32>,
    /// The token of every byte, where the vocabulary has it.
    bytes: [Option<u32>; 256],
    unknown_score: f64,
    adds_space: bool,
    removes_extra_spaces: bool,
}

/// The best way to spell the text up to some position.
#[derive(Debug, Clone, Copy)]
struct Path {
    score: f64,
    /// Where its last token begins.
    start: usize,
    /// Its last token, if it is not an unknown character.
    token: Option<u32>,
}

impl Unigram {
    pub(super) fn from_gguf(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Unigram, ModelError> {
        let metadata = gguf.metadata();
        metadata.get_array_f32("tokenizer.ggml.scores")?;
        let is_piece = |&id: &u32| vocabulary.kind(id) == TokenKind::Normal && !vocabulary.text(id).is_empty();
        let mut sorted: Vec<u32> = vocabulary.ids().filter(is_piece).collect();
        sorted.sort_by_key(|&id| vocabulary.text(id));
        let scores = sorted.iter().map(|&id| f64::from(vocabulary.score(id)));
        let worst = scores.min_by(f64::total_cmp).unwrap_or_default();
        Ok(Unigram {
            normalizer: CharsMap::from_metadata(metadata)?,
            sorted,
            bytes: byte_tokens(vocabulary),
            unknown_score: worst - UNKNOWN_PENALTY,
            adds_space: metadata.find_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            removes_extra_spaces: metadata.find_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(true),
        })
    }

    pub(super) fn adds_space(&self) -> bool {
        self.adds_space
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) -> Result<(), ModelError> {
        let normalized = self.normalizer.as_ref().map(|normalizer| normalizer.normalize(text));
        let marked = self.mark_spaces(normalized.as_deref().unwrap_or(text));
        // Words do not reach into each other, so each is spelled on its own.
        let mut rest = marked.as_str();
        while let Some(first) = rest.chars().next() {
            let next = rest[first.len_utf8()..].find(SPACE_MARK);
            let (word, after) = rest.split_at(next.map_or(rest.len(), |next| first.len_utf8() + next));
            self.encode_word(vocabulary, word, out)?;
            rest = after;
        }
        Ok(())
    }

    /// Writes marks for spaces, one before every word.
    fn mark_spaces(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len() + SPACE_MARK.len_utf8());
        if self.removes_extra_spaces {
            for word in text.split_whitespace() {
                let follows_word = !marked.is_empty();
                if (follows_word || self.adds_space) && !word.starts_with(SPACE_MARK) {
                    marked.push(SPACE_MARK);
                }
                marked.push_str(word);
            }
            return marked;
        }
        if self.adds_space && !text.is_empty() {
            marked.push(SPACE_MARK);
        }
        marked.extend(text.chars().map(|character| if character == ' ' { SPACE_MARK } else { character }));
        marked
    }

    fn encode_word(&self, vocabulary: &Vocabulary, word: &str, out: &mut Vec<u32>) -> Result<(), ModelError> {
        let paths = self.best_paths(vocabulary, word);
        let mut pieces = Vec::new();
        let mut end = word.len();
        while let Some(path) = paths[end].filter(|_| end > 0) {
            pieces.push((path.start..end, path.token));
            end = path.start;
        }
        let mut follows_unknown = false;
        for (range, token) in pieces.into_iter().rev() {
            let is_unknown = token.is_none();
            match token {
                Some(token) => out.push(token),
                None if word[range.clone()].bytes().all(|byte| self.bytes[usize::from(byte)].is_some()) => {
                    out.extend(word[range].bytes().filter_map(|byte| self.bytes[usize::from(byte)]));
                }
                // Unknown characters in a row are one unknown token.
                None if follows_unknown => {}
                None => out.push(vocabulary.require_unknown(word[range].chars().next().unwrap_or_default())?),
            }
            follows_unknown = is_unknown;
        }
        Ok(())
    }

    /// For every position at which a character ends, the best path to it.
    fn best_paths(&self, vocabulary: &Vocabulary, word: &str) -> Vec<Option<Path>> {
        let mut paths: Vec<Option<Path>> = vec![None; word.len() + 1];
        paths[0] = Some(Path { score: 0.0, start: 0, token: None });
        for (start, character) in word.char_indices() {
            let Some(score) = paths[start].map(|path| path.score) else { continue };
            let mut offer = |end: usize, path: Path| {
                if paths[end].is_none_or(|best| path.score > best.score) {
                    paths[end] = Some(path);
                }
            };
            let mut is_known = false;
            self.each_prefix(vocabulary, &word.as_bytes()[start..], |len, token| {
                is_known |= len == character.len_utf8();
                let score = score + f64::from(vocabulary.score(token));
                offer(start + len, Path { score, start, token: Some(token) });
            });
            if !is_known {
                let score = score + self.unknown_score;
                offer(start + character.len_utf8(), Path { score, start, token: None });
            }
        }
        paths
    }

    /// Calls `found` with every token that `text` begins with, shortest first, and its length.
    fn each_prefix(&self, vocabulary: &Vocabulary, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut candidates = self.sorted.as_slice();
        for (depth, &byte) in text.iter().enumerate() {
            let at = |id: u32| vocabulary.text(id).as_bytes().get(depth).copied();
            let from = candidates.partition_point(|&id| at(id) < Some(byte));
            let to = candidates.partition_point(|&id| at(id).cmp(&Some(byte)) != Ordering::Greater);
            candidates = &candidates[from..to];
            let Some(&first) = candidates.first() else { return };
            if vocabulary.text(first).len() == depth + 1 {
                found(depth + 1, first);
            }
        }
    }
}
