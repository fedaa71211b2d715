//! Log-probabilities, in the two shapes of OpenAI's APIs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use engine::{TokenInfo, TopToken};
use model::Tokenizer;
use serde::Serialize;

/// What OpenAI's API gives for probabilities too small for JSON, which knows no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// Log-probabilities of a chat message.
#[derive(Debug, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatToken>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: ChatCandidate,
    top_logprobs: Vec<ChatCandidate>,
}

#[derive(Debug, Serialize)]
struct ChatCandidate {
    token: String,
    logprob: f32,
    /// The token's bytes, since a token may be a piece of a character; `null` for tokens that stand for no text.
    bytes: Option<Vec<u8>>,
}

impl ChatLogprobs {
    /// One entry for each of `tokens` that has a log-probability.
    pub(super) fn of(tokens: &[TokenInfo], tokenizer: &Tokenizer) -> Self {
        let entry = |token: &TokenInfo| {
            let logprob = token.logprob?;
            let top_logprobs = token.top.iter().map(|&top| ChatCandidate::of(top, tokenizer)).collect();
            Some(ChatToken { token: ChatCandidate::of(TopToken { id: token.id, logprob }, tokenizer), top_logprobs })
        };
        Self { content: tokens.iter().filter_map(entry).collect() }
    }
}

impl ChatCandidate {
    fn of(candidate: TopToken, tokenizer: &Tokenizer) -> Self {
        let bytes = tokenizer.token_bytes(candidate.id);
        Self {
            token: name(candidate.id, tokenizer, ""),
            logprob: finite(candidate.logprob),
            bytes: (!bytes.is_empty()).then(|| bytes.to_vec()),
        }
    }
}

/// Log-probabilities of a completion: one entry per token in each list.
#[derive(Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    /// Where in the answer's text each token begins, in characters.
    text_offset: Vec<usize>,
    /// `null` for the first token of a prompt, which nothing predicted.
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    /// The likeliest tokens by name; the token itself is always among them.
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
}

/// Writes [`CompletionLogprobs`] piece by piece and keeps count of the characters.
#[derive(Debug, Default)]
pub(super) struct CompletionLogprobsWriter {
    /// Characters that have begun so far.
    characters: usize,
}

impl CompletionLogprobsWriter {
    /// The lists for `tokens`, which follow those of the last call.
    pub(super) fn write(&mut self, tokens: &[TokenInfo], tokenizer: &Tokenizer) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        for token in tokens {
            logprobs.text_offset.push(self.offset(tokenizer.token_bytes(token.id)));
            logprobs.token_logprobs.push(token.logprob.map(finite));
            logprobs.tokens.push(completion_name(token.id, tokenizer));
            logprobs.top_logprobs.push(token.logprob.map(|logprob| {
                let mut top = BTreeMap::new();
                for candidate in token.top.iter().chain([&TopToken { id: token.id, logprob }]) {
                    // Names are not unique; the likeliest of a name, which comes first, has it.
                    top.entry(completion_name(candidate.id, tokenizer)).or_insert(finite(candidate.logprob));
                }
                top
            }));
        }
        logprobs
    }

    /// Where a token of these bytes begins: within the current character if it continues one.
    fn offset(&mut self, bytes: &[u8]) -> usize {
        let continues = |byte: u8| byte & 0xC0 == 0x80;
        let inside = bytes.first().is_some_and(|&byte| continues(byte));
        let offset = self.characters.saturating_sub(usize::from(inside));
        self.characters += bytes.iter().filter(|&&byte| !continues(byte)).count();
        offset
    }
}

/// The completions API marks tokens that are pieces of a character.
fn completion_name(id: u32, tokenizer: &Tokenizer) -> String {
    name(id, tokenizer, "bytes:")
}

/// A token's text; for pieces of characters `prefix` and their bytes as escapes (`\xe2\x98`), as OpenAI writes them.
fn name(id: u32, tokenizer: &Tokenizer, prefix: &str) -> String {
    let bytes = tokenizer.token_bytes(id);
    if bytes.is_empty() {
        return tokenizer.token_text(id).to_owned();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(prefix.to_owned(), |mut name, byte| {
            // Writing to a string cannot fail.
            let _ = write!(name, "\\x{byte:02x}");
            name
        }),
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOGPROB_MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_characters_and_stay_within_split_ones() {
        let mut writer = CompletionLogprobsWriter::default();
        let snowman = "☃".as_bytes();
        let pieces: [&[u8]; 6] = [b"ab", &snowman[..1], &snowman[1..], b"", b"c", "é".as_bytes()];
        assert_eq!(pieces.map(|piece| writer.offset(piece)), [0, 2, 2, 3, 3, 4]);
    }
}
