//! Prompt lookup: what followed the last few tokens when they stood there before (Saxena 2023, "prompt lookup decoding").

use std::collections::HashMap;

/// Tokens that must have been the same.
const GRAM: usize = 3;
/// Earlier places that are compared, the latest first, and how many tokens before the gram count at most.
const PLACES: usize = 8;
const LONGEST: usize = 16;

/// All tokens of a sequence, and where each three of them stand. Memory grows with the sequence alone, and each token takes
/// a bounded number of operations.
#[derive(Default)]
pub(crate) struct Lookup {
    tokens: Vec<u32>,
    /// Where the latest of three tokens ends.
    latest: HashMap<[u32; GRAM], usize>,
    /// For each place the one before it at which the same three tokens end; 0 if there is none.
    before: Vec<usize>,
}

impl Lookup {
    /// Adds the next token.
    pub(crate) fn push(&mut self, id: u32) {
        self.tokens.push(id);
        let end = self.tokens.len();
        let before = self.last_gram().and_then(|gram| self.latest.insert(gram, end));
        self.before.push(before.unwrap_or(0));
    }

    /// Adds up to `count` tokens that may follow to `draft`: those that followed where most of the last tokens were the
    /// same, of equals the latest place.
    pub(crate) fn propose(&self, count: usize, draft: &mut Vec<u32>) {
        let end = self.tokens.len();
        let Some(&latest) = self.before.last() else { return };
        let earlier = |&place: &usize| Some(self.before[place - 1]).filter(|&before| before > 0);
        let places = std::iter::successors(Some(latest).filter(|&place| place > 0), earlier).take(PLACES);
        let Some(best) = places.max_by_key(|&place| (self.common(place), place)) else { return };
        // Where what followed reaches the end, it repeats itself from there on.
        let period = end - best;
        draft.extend((0..count).map(|index| self.tokens[best + index % period]));
    }

    /// How many tokens before `place` are those before the end.
    fn common(&self, place: usize) -> usize {
        let (before, last) = (self.tokens[..place].iter().rev(), self.tokens.iter().rev());
        before.zip(last).take(LONGEST).take_while(|(a, b)| a == b).count()
    }

    fn last_gram(&self) -> Option<[u32; GRAM]> {
        self.tokens.last_chunk::<GRAM>().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proposed(tokens: &[u32], count: usize) -> Vec<u32> {
        let mut lookup = Lookup::default();
        tokens.iter().for_each(|&id| lookup.push(id));
        let mut draft = Vec::new();
        lookup.propose(count, &mut draft);
        draft
    }

    #[test]
    fn what_followed_before_follows_again() {
        assert_eq!(proposed(&[1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 3), [4, 5, 6]);
        assert_eq!(proposed(&[1, 2, 3, 4, 5], 3), [0; 0]);
        assert_eq!(proposed(&[], 3), [0; 0]);
        // The place with more in common wins over the later one.
        assert_eq!(proposed(&[7, 8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 7, 8, 1, 2, 3], 1), [4]);
        // Of equals it is the later one.
        assert_eq!(proposed(&[0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 9, 1, 2, 3], 1), [5]);
    }

    #[test]
    fn what_repeats_goes_on_repeating() {
        assert_eq!(proposed(&[1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(proposed(&[7, 7, 7, 7], 3), [7, 7, 7]);
    }

    proptest! {
        #[test]
        fn drafts_come_from_where_the_last_tokens_stood(tokens in prop::collection::vec(0_u32..4, 0..80), count in 1_usize..9) {
            let draft = proposed(&tokens, count);
            let known = tokens.last_chunk::<GRAM>().is_some_and(|last| {
                tokens[..tokens.len() - 1].windows(GRAM).any(|window| window == last)
            });
            prop_assert_eq!(draft.len(), if known { count } else { 0 });
            if let (Some(last), Some(first)) = (tokens.last_chunk::<GRAM>(), draft.first()) {
                let follows = tokens.windows(GRAM + 1).any(|window| window[..GRAM] == last[..] && window[GRAM] == *first);
                prop_assert!(follows);
            }
        }
    }
}
