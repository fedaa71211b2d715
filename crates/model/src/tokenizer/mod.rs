//! Text to tokens and back, as the model's file prescribes.

mod byte_level;
mod charsmap;
mod index;
mod merge;
mod pre_tokenizer;
mod sentencepiece;
mod special;
mod unigram;
mod utf8;
mod vocabulary;
pub(crate) mod words;

pub use utf8::Utf8Stream;

use crate::{Gguf, ModelError};
use byte_level::ByteLevel;
use sentencepiece::SentencePiece;
use special::{Segment, SpecialTokens};
use unigram::Unigram;
use vocabulary::{Spelling, TokenKind, Vocabulary};

/// A model's vocabulary and the rules by which text becomes tokens.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    special: SpecialTokens,
    rules: Rules,
    adds_bos: bool,
    adds_eos: bool,
}

/// The ways of turning text without special tokens into tokens.
#[derive(Debug)]
enum Rules {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
    Unigram(Box<Unigram>),
}

/// What to do beside splitting the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Put the tokens around the text that the model expects there, such as the one that begins a text.
    pub add_special: bool,
    /// Read the texts of control tokens (`<|im_start|>`) as these tokens. Off for text that comes from outside: then
    /// they are characters like any others.
    pub parse_special: bool,
}

/// Positions in a text are kept in 32 bits; a space may be added to it.
const LONGEST_TEXT: usize = u32::MAX as usize - 8;

impl Tokenizer {
    /// Builds the tokenizer that a model's metadata describes (`tokenizer.ggml.*`).
    ///
    /// # Errors
    /// When a key is missing or malformed, or the kind of tokenizer is not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, ModelError> {
        const MODEL: &str = "tokenizer.ggml.model";
        let metadata = gguf.metadata();
        let model = metadata.get_str(MODEL)?;
        let spelling = match model {
            "gpt2" => Spelling::ByteLevel,
            "llama" | "t5" => Spelling::Escaped,
            _ => {
                let problem =
                    format!("is `{model}`; supported are `gpt2`, `llama` and `t5`, use a model with one of these");
                return Err(metadata.bad(MODEL, problem));
            }
        };
        let vocabulary = Vocabulary::from_gguf(gguf, spelling)?;
        let special = SpecialTokens::new(&vocabulary)?;
        let (rules, adds_bos, adds_eos) = match model {
            "gpt2" => {
                let rules = ByteLevel::from_gguf(gguf, &vocabulary)?;
                let adds_bos = rules.adds_bos();
                (Rules::ByteLevel(Box::new(rules)), adds_bos, false)
            }
            "llama" => (Rules::SentencePiece(Box::new(SentencePiece::from_gguf(gguf, &vocabulary)?)), true, false),
            _ => (Rules::Unigram(Box::new(Unigram::from_gguf(gguf, &vocabulary)?)), false, true),
        };
        let adds_bos = metadata.find_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos);
        let adds_eos = metadata.find_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(adds_eos);
        Ok(Tokenizer { vocabulary, special, rules, adds_bos, adds_eos })
    }

    /// The tokens of `text`. The text is taken as it is: a BOS token is added if the options ask for it even where
    /// the text begins with one. Bytes that a byte-level vocabulary lacks are left out.
    ///
    /// # Errors
    /// When the text has a character that a vocabulary of the other kinds cannot express, or is longer than 4 GiB.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, ModelError> {
        if text.len() > LONGEST_TEXT {
            return Err(ModelError::Tokenize {
                problem: format!("the text has {} bytes, more than 4 GiB", text.len()),
            });
        }
        let mut tokens = Vec::new();
        if options.add_special && self.adds_bos {
            tokens.extend(self.vocabulary.bos);
        }
        self.special.split(text, options.parse_special, |segment| match segment {
            Segment::Token(id) => {
                tokens.push(id);
                Ok(())
            }
            Segment::Text(text) => match &self.rules {
                Rules::ByteLevel(rules) => {
                    rules.encode(&self.vocabulary, text, &mut tokens);
                    Ok(())
                }
                Rules::SentencePiece(rules) => rules.encode(&self.vocabulary, text, &mut tokens),
                Rules::Unigram(rules) => rules.encode(&self.vocabulary, text, &mut tokens),
            },
        })?;
        if options.add_special && self.adds_eos {
            tokens.extend(self.vocabulary.eos);
        }
        Ok(tokens)
    }

    /// The text of `tokens`, with U+FFFD for bytes that are not UTF-8. Where the tokenizer puts a space before a
    /// text, that space is taken off again.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        let bytes = match (self.adds_space(), bytes.as_slice()) {
            (true, [b' ', rest @ ..]) => rest,
            (_, bytes) => bytes,
        };
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// The bytes that a token adds to the text: none for control tokens, unknown text and ids past the end of the
    /// vocabulary. They may be part of a character; [`Utf8Stream`] puts them together.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The text by which the vocabulary knows a token, such as `<|im_end|>` or `Ġthe`; empty for ids past its end.
    pub fn token_text(&self, id: u32) -> &str {
        self.vocabulary.text(id)
    }

    /// Whether a token is structure rather than text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == TokenKind::Control
    }

    /// Whether a token ends an answer.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.ends_generation(id)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// The token that stands for unknown text.
    pub fn unknown(&self) -> Option<u32> {
        self.vocabulary.unknown
    }

    /// The token that fills batches up.
    pub fn padding(&self) -> Option<u32> {
        self.vocabulary.padding
    }

    /// How many tokens there are; ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.len()
    }

    fn adds_space(&self) -> bool {
        match &self.rules {
            Rules::ByteLevel(_) => false,
            Rules::SentencePiece(rules) => rules.adds_space(),
            Rules::Unigram(rules) => rules.adds_space(),
        }
    }
}
