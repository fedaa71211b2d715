//! The likeliest tokens of a slice of the vocabulary: all that is needed of it to draw a token from the likeliest few.

use std::cmp::Ordering;

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scored {
    pub(crate) id: u32,
    pub(crate) logit: f32,
}

/// Likeliest first; equal logits in order of their ids, so that ties never depend on the algorithm.
pub(crate) fn likelier(a: &Scored, b: &Scored) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Logits that are compared at the same time.
const LANES: usize = 16;

/// The token with the largest logit in a slice of the vocabulary that begins at token `first`; of equals the one that
/// comes first. `None` if there is no token.
pub(crate) fn most_likely(logits: &[f32], first: usize) -> Option<Scored> {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (largest, logit) in largest.iter_mut().zip(chunk) {
            *largest = if *logit > *largest { *logit } else { *largest };
        }
    }
    let largest = largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    let scored = |index: usize| Scored { id: (first + index) as u32, logit: logits[index] };
    // Where no logit is a number none is the largest, and the first is as good as any.
    let index = logits.iter().position(|logit| *logit == largest).or((!logits.is_empty()).then_some(0));
    index.map(scored)
}

/// Adds the `count` likeliest tokens of a slice of the vocabulary that begins at token `first` to `best`, or all if there
/// are no more. One is the one that [`most_likely`] finds, several are those that are first by [`likelier`].
pub(crate) fn add_best(logits: &[f32], first: usize, count: usize, best: &mut Vec<Scored>) {
    if count == 1 {
        best.extend(most_likely(logits, first));
        return;
    }
    let start = best.len();
    // Whenever twice as many have gathered as are wanted, only those wanted stay, and the last of them is the bar for all
    // that follow: of equals those that came before are likelier.
    let mut bar = None;
    for (&logit, id) in logits.iter().zip(first as u32..) {
        let candidate = Scored { id, logit };
        if bar.is_some_and(|bar| candidate.logit.total_cmp(&bar) != Ordering::Greater) {
            continue;
        }
        best.push(candidate);
        if best.len() - start == 2 * count {
            best[start..].select_nth_unstable_by(count - 1, likelier);
            best.truncate(start + count);
            bar = best.last().map(|last| last.logit);
        }
    }
    if best.len() - start > count {
        best[start..].select_nth_unstable_by(count - 1, likelier);
        best.truncate(start + count);
    }
}

/// Keeps the `count` likeliest tokens of what [`add_best`] found in all slices, in order of the vocabulary: likeliest
/// first.
pub(crate) fn merge(best: &mut Vec<Scored>, count: usize) {
    if count == 1 {
        let first = best.iter().copied().reduce(|best, other| if other.logit > best.logit { other } else { best });
        best.clear();
        best.extend(first);
        return;
    }
    best.sort_unstable_by(likelier);
    best.truncate(count);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the vocabulary is cut, the best of the slices' best are the best of all.
        #[test]
        fn slices_find_what_the_whole_finds(
            logits in prop::collection::vec(prop_oneof![-3_i8..3, any::<i8>()], 1..200),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            count in 1_usize..50,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let mut all: Vec<Scored> = logits.iter().zip(0..).map(|(&logit, id)| Scored { id, logit }).collect();
            all.sort_by(likelier);
            all.truncate(count);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(logits.len())).collect();
            cuts.extend([0, logits.len()]);
            cuts.sort_unstable();
            let mut best = Vec::new();
            for cut in cuts.windows(2) {
                let before = best.len();
                add_best(&logits[cut[0]..cut[1]], cut[0], count, &mut best);
                prop_assert_eq!(best.len() - before, count.min(cut[1] - cut[0]));
            }
            merge(&mut best, count);
            prop_assert_eq!(best, all);
        }
    }

    #[test]
    fn the_first_of_equals_is_the_most_likely_as_zeros_of_both_signs_are() {
        let mut best = Vec::new();
        add_best(&[-1.0, -0.0], 0, 1, &mut best);
        add_best(&[0.0, 0.0], 2, 1, &mut best);
        merge(&mut best, 1);
        assert_eq!(best, [Scored { id: 1, logit: -0.0 }]);
    }
}
