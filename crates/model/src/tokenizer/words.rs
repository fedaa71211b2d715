//! How the text is cut into words where a file spells it out, rather than naming a family of models.
//!
//! GGUF has only names. The keys of this module are ours; they carry what `tokenizer.json` says.

use std::borrow::Cow;

use super::pre_tokenizer::Cutter;

/// The steps, each as [`Step::written`].
pub(crate) const STEPS: &str = "tokenizer.ropewalk.steps";
/// Whether text is brought into Unicode's composed form (NFC) first.
pub(crate) const COMPOSES: &str = "tokenizer.ropewalk.composes";
/// Whether a word that is a token is taken as it is, whether or not merges lead to it.
pub(crate) const TAKES_WHOLE_WORDS: &str = "tokenizer.ropewalk.takes_whole_words";

/// One cut through all pieces that the cuts before it have left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Every match becomes a piece, and so does the text between two matches.
    Matches(Cow<'static, str>),
    /// The same, and white space that the pattern does not match becomes a piece as well, but for a last character
    /// that a word follows.
    Words(Cow<'static, str>),
}

impl Step {
    pub(crate) fn pattern(&self) -> &str {
        match self {
            Step::Matches(pattern) | Step::Words(pattern) => pattern,
        }
    }

    /// Whether its pattern can be run.
    pub(crate) fn is_valid(&self) -> bool {
        Cutter::new(self).is_ok()
    }

    /// The step as a string in metadata: its kind in one character, then its pattern.
    pub(crate) fn written(&self) -> String {
        let kind = if matches!(self, Step::Matches(_)) { 'm' } else { 'w' };
        format!("{kind}{}", self.pattern())
    }

    /// Reads what [`Step::written`] has made.
    pub(crate) fn read(written: &str) -> Option<Self> {
        let pattern = |pattern: &str| Cow::Owned(pattern.to_owned());
        match written.split_at_checked(1)? {
            ("m", rest) => Some(Step::Matches(pattern(rest))),
            ("w", rest) => Some(Step::Words(pattern(rest))),
            _ => None,
        }
    }
}
