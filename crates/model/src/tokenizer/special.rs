//! Tokens that are found in the text before it is cut or merged.

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocabulary::{TokenKind, Vocabulary};
use crate::ModelError;

/// Finds the tokens that stand for their text as a whole.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Tokens that count in any text.
    always: Matcher,
    /// Those and the control tokens.
    all: Matcher,
}

/// A stretch of text or a token that was found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    Text(&'a str),
    Token(u32),
}

#[derive(Debug)]
struct Matcher {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl SpecialTokens {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<SpecialTokens, ModelError> {
        let always = |kind| kind == TokenKind::UserDefined;
        let all = |kind| matches!(kind, TokenKind::UserDefined | TokenKind::Control | TokenKind::Unknown);
        Ok(SpecialTokens { always: Matcher::new(vocabulary, always)?, all: Matcher::new(vocabulary, all)? })
    }

    /// Hands the stretches of `text` to `segment`, in order: tokens, and the text between them where it is not empty.
    /// Control tokens are found only if `parse_control`. Where several tokens begin, the longest counts.
    pub(super) fn split<'a>(
        &self,
        text: &'a str,
        parse_control: bool,
        mut segment: impl FnMut(Segment<'a>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let matcher = if parse_control { &self.all } else { &self.always };
        let mut done = 0;
        if let Some(automaton) = &matcher.automaton {
            for found in automaton.find_iter(text) {
                if done < found.start() {
                    segment(Segment::Text(&text[done..found.start()]))?;
                }
                segment(Segment::Token(matcher.ids[found.pattern().as_usize()]))?;
                done = found.end();
            }
        }
        if done < text.len() {
            segment(Segment::Text(&text[done..]))?;
        }
        Ok(())
    }
}

impl Matcher {
    fn new(vocabulary: &Vocabulary, wanted: impl Fn(TokenKind) -> bool) -> Result<Matcher, ModelError> {
        let has_text = |&id: &u32| !vocabulary.text(id).is_empty();
        let ids: Vec<u32> = vocabulary.ids().filter(|&id| wanted(vocabulary.kind(id))).filter(has_text).collect();
        if ids.is_empty() {
            return Ok(Matcher { automaton: None, ids });
        }
        let text = |&id: &u32| match vocabulary.kind(id) {
            // What the text has, which is a space where the vocabulary may write a mark for it.
            TokenKind::UserDefined => vocabulary.bytes(id),
            _ => vocabulary.text(id).as_bytes(),
        };
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(ids.iter().map(text));
        match automaton {
            Ok(automaton) => Ok(Matcher { automaton: Some(automaton), ids }),
            Err(error) => {
                Err(ModelError::Tokenize { problem: format!("the vocabulary's special tokens are too many: {error}") })
            }
        }
    }
}
