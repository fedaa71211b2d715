//! BPE as SentencePiece does it: no words are cut, and neighbours are joined in the order of the score of what they
//! make. Characters without a token become tokens of their bytes.

use super::index::PieceIndex;
use super::merge::{Merge, Merger};
use super::vocabulary::{SPACE_MARK, TokenKind, Vocabulary};
use crate::{Gguf, ModelError};

/// The rules of a SentencePiece tokenizer of the BPE type.
#[derive(Debug)]
pub(super) struct SentencePiece {
    index: PieceIndex,
    /// The token of every byte, where the vocabulary has it.
    bytes: [Option<u32>; 256],
    /// Whether a space is put before every stretch of text.
    adds_space: bool,
}

impl SentencePiece {
    pub(super) fn from_gguf(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<SentencePiece, ModelError> {
        // Scores decide what is joined, so they must be there.
        gguf.metadata().get_array_f32("tokenizer.ggml.scores")?;
        Ok(SentencePiece {
            index: PieceIndex::new(vocabulary, |_| true),
            bytes: byte_tokens(vocabulary),
            adds_space: gguf.metadata().find_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        })
    }

    pub(super) fn adds_space(&self) -> bool {
        self.adds_space
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) -> Result<(), ModelError> {
        // Tokens are looked up with the spaces that they stand for. A mark in the text counts as a space, too.
        let mut spaced = String::with_capacity(text.len() + 1);
        if self.adds_space {
            spaced.push(' ');
        }
        spaced.extend(text.chars().map(|character| if character == SPACE_MARK { ' ' } else { character }));
        let bytes = spaced.as_bytes();

        let mut merger = Merger::default();
        let mut unknown_end = None;
        for (start, character) in spaced.char_indices() {
            let end = start + character.len_utf8();
            if let Some(id) = self.index.find(vocabulary, &bytes[start..end]) {
                merger.push(id, start, end - start);
            } else if bytes[start..end].iter().all(|&byte| self.bytes[usize::from(byte)].is_some()) {
                let tokens = bytes[start..end].iter().filter_map(|&byte| self.bytes[usize::from(byte)]);
                (start..end).zip(tokens).for_each(|(start, id)| merger.push(id, start, 1));
            } else {
                // Unknown characters in a row are one unknown token.
                if unknown_end != Some(start) {
                    merger.push(vocabulary.require_unknown(character)?, start, end - start);
                }
                unknown_end = Some(end);
            }
        }
        merger.run(|left, right| {
            let (start, end) = (left.start as usize, (right.start + right.len) as usize);
            let id = self.index.find(vocabulary, &bytes[start..end])?;
            Some(Merge { rank: rank_of_score(vocabulary.score(id)), id })
        });
        out.extend(merger.tokens());
        Ok(())
    }
}

/// The token of every byte, where the vocabulary has it.
pub(super) fn byte_tokens(vocabulary: &Vocabulary) -> [Option<u32>; 256] {
    let mut tokens = [None; 256];
    for id in vocabulary.ids().filter(|&id| vocabulary.kind(id) == TokenKind::Byte) {
        if let &[byte] = vocabulary.bytes(id) {
            tokens[usize::from(byte)] = Some(id);
        }
    }
    tokens
}

/// A number that is lower for higher scores.
fn rank_of_score(score: f32) -> u32 {
    // The bits of a float sort like its value once the negative ones, which sort the other way round, are flipped.
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_rank_lower() {
        let scores = [f32::INFINITY, 1e9, 2.0, 1.0, 0.0, -0.5, -1.0, -236_280.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank_of_score(pair[0]) < rank_of_score(pair[1])));
    }
}
