//! Tokens in, text out: whole characters only, and never a piece of a stop string.

use model::Utf8Stream;

use crate::request::TokenInfo;

/// What one token released.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Released {
    /// Text that may be shown.
    pub(crate) text: String,
    /// Tokens all of whose text has been shown.
    pub(crate) tokens: Vec<TokenInfo>,
    /// The stop string that was completed, if one was. Nothing more may be pushed then.
    pub(crate) stop: Option<String>,
}

/// Turns a stream of tokens into text that is safe to show.
///
/// Text that could still become a stop string is held back until it either does or cannot any more. A token is
/// released with the last of its text.
pub(crate) struct TextFilter {
    stops: Vec<String>,
    characters: Utf8Stream,
    /// Text that is complete but held back.
    held: String,
    /// Tokens held back, each with the number of bytes of `held` at which its text ends.
    tokens: Vec<(TokenInfo, usize)>,
}

impl TextFilter {
    pub(crate) fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            characters: Utf8Stream::default(),
            held: String::new(),
            tokens: Vec::new(),
        }
    }

    /// Adds one token; `bytes_of` gives the bytes that it contributes to the text.
    pub(crate) fn push<'a>(&mut self, token: TokenInfo, bytes_of: impl Fn(u32) -> &'a [u8]) -> Released {
        let text = self.characters.push(bytes_of(token.id));
        self.held.push_str(&text);
        self.tokens.push((token, self.held.len()));
        if let Some((start, stop)) = self.first_stop() {
            let stop = self.stops[stop].clone();
            let mut released = self.release(start);
            // What is left began inside the stop string or after it.
            self.held.clear();
            self.tokens.clear();
            released.stop = Some(stop);
            return released;
        }
        let safe = self.held.len() - self.longest_possible_stop();
        self.release(safe)
    }

    /// Releases everything at the end of the stream; an unfinished character becomes U+FFFD.
    pub(crate) fn finish(&mut self) -> (String, Vec<TokenInfo>) {
        let rest = std::mem::take(&mut self.characters).finish();
        self.held.push_str(&rest);
        let tokens = self.tokens.drain(..).map(|(token, _)| token).collect();
        (std::mem::take(&mut self.held), tokens)
    }

    /// Where the earliest stop string begins in the held text, and which one; of two that begin together the longer.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate();
        let found = found.filter_map(|(index, stop)| self.held.find(stop.as_str()).map(|start| (start, index)));
        found.min_by_key(|&(start, index)| (start, usize::MAX - self.stops[index].len()))
    }

    /// Length in bytes of the longest end of the held text that begins a stop string.
    fn longest_possible_stop(&self) -> usize {
        let ends = self.held.char_indices().map(|(start, _)| &self.held[start..]);
        let could_stop = |end: &str| self.stops.iter().any(|stop| stop.len() > end.len() && stop.starts_with(end));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        ends.filter(|end| end.len() < longest).find(|end| could_stop(end)).map_or(0, str::len)
    }

    /// Takes the first `length` bytes of the held text, and the tokens that end within them.
    fn release(&mut self, length: usize) -> Released {
        let text = self.held[..length].to_owned();
        self.held.drain(..length);
        let whole = self.tokens.iter().take_while(|(_, end)| *end <= length).count();
        let tokens = self.tokens.drain(..whole).map(|(token, _)| token).collect();
        for (_, end) in &mut self.tokens {
            *end -= length;
        }
        Released { text, tokens, stop: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pushes each piece as one token and returns what was shown, piece by piece, and the stop string.
    fn show(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, Option<String>, usize) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut filter = TextFilter::new(&stops);
        let mut shown = Vec::new();
        let mut tokens = 0;
        for id in 0..pieces.len() as u32 {
            let token = TokenInfo { id, logprob: None, top: Vec::new() };
            let released = filter.push(token, |id| pieces[id as usize]);
            shown.push(released.text);
            tokens += released.tokens.len();
            if released.stop.is_some() {
                return (shown, released.stop, tokens);
            }
        }
        let (text, rest) = filter.finish();
        shown.push(text);
        (shown, None, tokens + rest.len())
    }

    #[test]
    fn a_stop_string_over_three_tokens_is_never_shown_in_part() {
        let (shown, stop, tokens) = show(&["###END"], &[b"one", b" #", b"##E", b"ND two"]);
        assert_eq!(shown, ["one", " ", "", ""]);
        assert_eq!(stop.as_deref(), Some("###END"));
        assert_eq!(tokens, 1);
    }

    #[test]
    fn text_that_only_looked_like_a_stop_string_is_released() {
        let (shown, stop, tokens) = show(&["###END"], &[b"##", b"#!", b"ok"]);
        assert_eq!(shown, ["", "###!", "ok", ""]);
        assert_eq!((stop, tokens), (None, 3));
    }

    #[test]
    fn the_earliest_and_then_the_longest_stop_string_wins() {
        assert_eq!(show(&["bc", "abcd", "abc"], &[b"xabcd"]).1.as_deref(), Some("abcd"));
        assert_eq!(show(&["d", "bc"], &[b"xabcd"]).1.as_deref(), Some("bc"));
    }

    #[test]
    fn a_character_over_two_tokens_is_shown_whole() {
        let snowman = "☃".as_bytes();
        let (shown, _, tokens) = show(&[], &[&snowman[..1], &snowman[1..], b"!"]);
        assert_eq!(shown, ["", "☃", "!", ""]);
        assert_eq!(tokens, 3);
    }

    #[test]
    fn an_unfinished_character_ends_as_a_replacement() {
        assert_eq!(show(&[], &[b"a\xe2\x98"]).0.concat(), "a\u{fffd}");
    }

    proptest! {
        /// However text is cut into tokens, what is shown is the text up to the first stop string, and at no moment
        /// more than that.
        #[test]
        fn shows_exactly_the_text_before_the_first_stop(
            text in "[ab☃ ]{0,24}",
            stops in prop::collection::vec("[ab☃]{1,4}", 0..3),
            cuts in prop::collection::vec(1_usize..5, 0..24),
        ) {
            let mut rest = text.as_bytes();
            let mut pieces = Vec::new();
            for cut in cuts {
                let (piece, others) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = others;
            }
            pieces.push(rest);
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (shown, stop, _) = show(&stops, &pieces);
            let shown = shown.concat();
            match stop {
                None => {
                    prop_assert_eq!(&shown, &text);
                    prop_assert!(stops.iter().all(|stop| !text.contains(stop)));
                }
                Some(stop) => {
                    let with_stop = format!("{shown}{stop}");
                    prop_assert!(text.starts_with(&with_stop));
                    prop_assert!(stops.iter().all(|stop| !shown.contains(stop)));
                }
            }
        }
    }
}
