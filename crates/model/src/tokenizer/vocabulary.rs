//! What a model's file says of its tokens: texts, kinds, scores, and which of them are special.

use super::byte_level::byte_of_character;
use crate::gguf::{Metadata, Strings};
use crate::{Gguf, ModelError};

/// What a token is for, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Part of the text.
    Normal,
    /// Stands for text that the vocabulary cannot express.
    Unknown,
    /// Structure that is not part of the text, such as the end of a message.
    Control,
    /// Part of the text that is found in it before anything else is done.
    UserDefined,
    /// Never produced.
    Unused,
    /// A single byte of a character that has no token, written `<0x41>`.
    Byte,
}

/// How token texts stand for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Every byte is a character of its own, as GPT-2 introduced it.
    ByteLevel,
    /// Plain UTF-8 with `▁` for a space, as SentencePiece writes it.
    Escaped,
}

/// The character that SentencePiece writes for a space.
pub(super) const SPACE_MARK: char = '▁';

/// The tokens and the roles that some of them play.
#[derive(Debug)]
pub(super) struct Vocabulary {
    texts: Strings,
    kinds: Vec<TokenKind>,
    scores: Vec<f32>,
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where the bytes of each token end.
    byte_ends: Vec<usize>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) padding: Option<u32>,
    /// The tokens that end an answer, in ascending order.
    ends_of_generation: Vec<u32>,
}

/// Texts of control tokens that end an answer, in the models that use them. Files rarely say so in any other way.
const END_TEXTS: &[&str] = &[
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<|user|>",
    "<|observation|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "[|endofturn|]",
    "<｜end▁of▁sentence｜>",
];

impl Vocabulary {
    /// Reads the tokens of a model.
    pub(super) fn from_gguf(gguf: &Gguf, spelling: Spelling) -> Result<Vocabulary, ModelError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let metadata = gguf.metadata();
        let texts = metadata.get_array_str(TOKENS)?.clone();
        if texts.is_empty() || u32::try_from(texts.len()).is_err() {
            return Err(metadata.bad(TOKENS, format!("holds {} tokens; there must be 1 to 2^32 - 1", texts.len())));
        }
        let kinds = kinds(metadata, texts.len())?;
        let scores = scores(metadata, texts.len())?;
        let mut vocabulary = Vocabulary {
            bytes: Vec::with_capacity(texts.iter().map(str::len).sum()),
            byte_ends: Vec::with_capacity(texts.len()),
            texts,
            kinds,
            scores,
            bos: None,
            eos: None,
            unknown: None,
            padding: None,
            ends_of_generation: Vec::new(),
        };
        vocabulary.spell(spelling);
        vocabulary.bos = vocabulary.role(metadata, "tokenizer.ggml.bos_token_id")?;
        vocabulary.eos = vocabulary.role(metadata, "tokenizer.ggml.eos_token_id")?;
        vocabulary.unknown = vocabulary.minor_role(metadata, "tokenizer.ggml.unknown_token_id");
        vocabulary.padding = vocabulary.minor_role(metadata, "tokenizer.ggml.padding_token_id");
        vocabulary.ends_of_generation = vocabulary.find_ends(metadata)?;
        Ok(vocabulary)
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// All tokens in order.
    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        // `from_gguf` has made sure that the number fits.
        0..self.len() as u32
    }

    /// The text by which the vocabulary knows a token; empty for an id past the end.
    pub(super) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).unwrap_or_default()
    }

    /// The bytes that a token adds to the text; none for an id past the end.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.byte_ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.byte_ends[index - 1] };
        &self.bytes[start..end]
    }

    /// What a token is for; ids past the end are never produced.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// How likely a token is compared with others; 0 where the file does not say.
    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or_default()
    }

    pub(super) fn ends_generation(&self, id: u32) -> bool {
        self.ends_of_generation.binary_search(&id).is_ok()
    }

    /// The token for unknown text, for a text that needs it because of `character`.
    pub(super) fn require_unknown(&self, character: char) -> Result<u32, ModelError> {
        self.unknown.ok_or_else(|| ModelError::Tokenize {
            problem: format!("the vocabulary has no token for {character:?} and none for unknown text"),
        })
    }

    /// Works out the bytes of every token.
    fn spell(&mut self, spelling: Spelling) {
        for (index, text) in self.texts.iter().enumerate() {
            match self.kinds[index] {
                TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => {}
                TokenKind::Byte => match byte_of(text) {
                    Some(byte) => self.bytes.push(byte),
                    None => self.bytes.extend_from_slice(text.as_bytes()),
                },
                TokenKind::Normal if spelling == Spelling::ByteLevel => {
                    let start = self.bytes.len();
                    self.bytes.extend(text.chars().map_while(byte_of_character));
                    if self.bytes.len() - start != text.chars().count() {
                        // Not in the byte alphabet, so it was added later and stands for itself.
                        self.bytes.truncate(start);
                        self.bytes.extend_from_slice(text.as_bytes());
                    }
                }
                TokenKind::UserDefined if spelling == Spelling::ByteLevel => {
                    self.bytes.extend_from_slice(text.as_bytes());
                }
                TokenKind::Normal | TokenKind::UserDefined => {
                    let mut rest = text.split(SPACE_MARK);
                    self.bytes.extend_from_slice(rest.next().unwrap_or_default().as_bytes());
                    for part in rest {
                        self.bytes.push(b' ');
                        self.bytes.extend_from_slice(part.as_bytes());
                    }
                }
            }
            self.byte_ends.push(self.bytes.len());
        }
    }

    /// The token that a key names, if the key is there.
    fn role(&self, metadata: &Metadata, key: &str) -> Result<Option<u32>, ModelError> {
        match metadata.find_u64(key)? {
            None => Ok(None),
            // Some converters write -1 as an unsigned number for "none".
            Some(id) if id == u64::from(u32::MAX) || id == u64::MAX => Ok(None),
            Some(id) if id < self.len() as u64 => Ok(Some(id as u32)),
            Some(id) => Err(metadata.bad(key, format!("is {id} but the vocabulary has only {} tokens", self.len()))),
        }
    }

    /// The token that a key names, for roles that a model can do without: files in the wild name padding tokens past
    /// the end of the vocabulary.
    fn minor_role(&self, metadata: &Metadata, key: &str) -> Option<u32> {
        self.role(metadata, key).unwrap_or_else(|error| {
            tracing::warn!("ignored: {error}");
            None
        })
    }

    fn find_ends(&self, metadata: &Metadata) -> Result<Vec<u32>, ModelError> {
        let mut ends: Vec<u32> = self.eos.into_iter().collect();
        ends.extend(self.role(metadata, "tokenizer.ggml.eot_token_id")?);
        ends.extend(self.role(metadata, "tokenizer.ggml.eom_token_id")?);
        let is_structure = |id: u32| match self.kind(id) {
            TokenKind::Control => true,
            // Some files wrongly mark `<|im_end|>` and its like as text, but `</s>` really is text in some models.
            TokenKind::UserDefined => self.text(id).starts_with("<|"),
            _ => false,
        };
        ends.extend(self.ids().filter(|&id| END_TEXTS.contains(&self.text(id)) && is_structure(id)));
        // Where an answer ends with `<|return|>` or `<|call|>`, `<|end|>` only ends one of its parts.
        let has = |text: &str| ends.iter().any(|&id| self.text(id) == text);
        if has("<|return|>") && has("<|call|>") {
            ends.retain(|&id| self.text(id) != "<|end|>");
        }
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }
}

fn kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenKind>, ModelError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(numbers) = metadata.find_array_i64(KEY)? else { return Ok(vec![TokenKind::Normal; tokens]) };
    require_length(metadata, KEY, numbers.len(), tokens)?;
    let kind = |number| match number {
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        // 1, and 0 for "undefined", which old converters wrote.
        _ => TokenKind::Normal,
    };
    Ok(numbers.into_iter().take(tokens).map(kind).collect())
}

fn scores(metadata: &Metadata, tokens: usize) -> Result<Vec<f32>, ModelError> {
    const KEY: &str = "tokenizer.ggml.scores";
    let Some(scores) = metadata.find_array_f32(KEY)? else { return Ok(Vec::new()) };
    require_length(metadata, KEY, scores.len(), tokens)?;
    Ok(scores.to_vec())
}

fn require_length(metadata: &Metadata, key: &str, found: usize, tokens: usize) -> Result<(), ModelError> {
    if found >= tokens {
        return Ok(());
    }
    Err(metadata.bad(key, format!("has {found} elements for {tokens} tokens; convert the model again")))
}

/// The byte that `<0x41>` stands for.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hexadecimal.then(|| u8::from_str_radix(digits, 16).ok())?
}
