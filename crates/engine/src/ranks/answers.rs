//! What the ranks of the last stage tell rank 0 of a step: slices of logits, or only the likeliest candidates in them.

use std::ops::Range;

use model::LOGIT_ROWS;

use crate::candidates::{Scored, add_best, merge};
use crate::ranks::plan::Asked;

/// Numbers of 32 bits in a rank's answer, where `width` is the size of its slice of the vocabulary.
pub(crate) fn answer_length(asked: &[Asked], width: usize) -> usize {
    asked.iter().map(|asked| asked.best.map_or(width, |count| 2 * count.min(width))).sum()
}

/// Replaces `message` with the answer of the rank that has the part `ids` of the vocabulary: for each token of `asked` the
/// logits, or ids and logits of the best of them. `logits` is `[asked, ids]`.
pub(crate) fn pack(asked: &[Asked], ids: Range<usize>, logits: &[f32], best: &mut Vec<Scored>, message: &mut Vec<u32>) {
    message.clear();
    if ids.is_empty() {
        return;
    }
    for (asked, logits) in asked.iter().zip(logits.chunks_exact(ids.len())) {
        let Some(count) = asked.best else {
            message.extend_from_slice(bytemuck::cast_slice(logits));
            continue;
        };
        best.clear();
        add_best(logits, ids.start, count, best);
        message.extend(best.iter().flat_map(|scored| [scored.id, scored.logit.to_bits()]));
    }
}

/// On rank 0: the answers of all ranks for up to [`LOGIT_ROWS`] tokens, put together.
pub(crate) struct Answers {
    vocabulary: usize,
    /// `[LOGIT_ROWS, vocabulary]`.
    logits: Vec<f32>,
    best: Vec<Vec<Scored>>,
}

/// What is known of the token that follows one of a step.
pub(crate) enum Answer<'a> {
    /// All logits. May be changed.
    Whole(&'a mut [f32]),
    /// The likeliest candidates, likeliest first.
    Best(&'a [Scored]),
}

impl Answers {
    pub(crate) fn new(vocabulary: usize) -> Self {
        Self { vocabulary, logits: vec![0.0; LOGIT_ROWS * vocabulary], best: vec![Vec::new(); LOGIT_ROWS] }
    }

    pub(crate) fn clear(&mut self) {
        self.best.iter_mut().for_each(Vec::clear);
    }

    /// Where this rank's own slice from `first` on is computed, and the distance between the rows.
    pub(crate) fn own(&mut self, first: usize) -> (&mut [f32], usize) {
        (&mut self.logits[first..], self.vocabulary)
    }

    /// Takes the best of this rank's own slice.
    pub(crate) fn add_own(&mut self, asked: &[Asked], ids: Range<usize>) {
        for ((asked, logits), best) in asked.iter().zip(self.logits.chunks_exact(self.vocabulary)).zip(&mut self.best) {
            if let Some(count) = asked.best {
                add_best(&logits[ids.clone()], ids.start, count, best);
            }
        }
    }

    /// Takes what [`pack`] made on another rank; `message` has the length of [`answer_length`].
    pub(crate) fn add(&mut self, asked: &[Asked], ids: Range<usize>, mut message: &[u32]) {
        let rows = asked.iter().zip(self.logits.chunks_exact_mut(self.vocabulary)).zip(&mut self.best);
        for ((asked, logits), best) in rows {
            let length = answer_length(std::slice::from_ref(asked), ids.len());
            let (answer, rest) = message.split_at(length);
            message = rest;
            if asked.best.is_some() {
                let scored = answer.as_chunks::<2>().0.iter();
                best.extend(scored.map(|&[id, bits]| Scored { id, logit: f32::from_bits(bits) }));
            } else {
                logits[ids.clone()].copy_from_slice(bytemuck::cast_slice(answer));
            }
        }
    }

    /// Puts the slices together, once those of all ranks are there, in order of the vocabulary.
    pub(crate) fn merge(&mut self, asked: &[Asked]) {
        for (asked, best) in asked.iter().zip(&mut self.best) {
            if let Some(count) = asked.best {
                merge(best, count);
            }
        }
    }

    /// The answer for the token `asked[index]`.
    pub(crate) fn get(&mut self, index: usize, asked: Asked) -> Answer<'_> {
        match asked.best {
            Some(_) => Answer::Best(&self.best[index]),
            None => Answer::Whole(&mut self.logits[index * self.vocabulary..][..self.vocabulary]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_two_ranks_come_together() {
        let asked = [(0, None), (3, Some(2)), (4, Some(1)), (5, Some(9))].map(|(row, best)| Asked { row, best });
        let whole: Vec<Vec<f32>> = (0..4).map(|row| (0..7).map(|id| ((id * 5 + row) % 7) as f32).collect()).collect();
        let mut answers = Answers::new(7);
        for ids in [0..3, 3..7] {
            let slice: Vec<f32> = whole.iter().flat_map(|row| row[ids.clone()].to_vec()).collect();
            let mut message = vec![1];
            pack(&asked, ids.clone(), &slice, &mut Vec::new(), &mut message);
            assert_eq!(message.len(), answer_length(&asked, ids.len()));
            answers.add(&asked, ids, &message);
        }
        answers.merge(&asked);
        for (index, asked) in asked.into_iter().enumerate() {
            let mut expected: Vec<usize> = (0..7).collect();
            expected.sort_by(|&a, &b| whole[index][b].total_cmp(&whole[index][a]));
            match answers.get(index, asked) {
                Answer::Whole(logits) => assert_eq!(logits, whole[index]),
                Answer::Best(best) => {
                    expected.truncate(asked.best.unwrap());
                    assert!(best.iter().map(|scored| scored.id as usize).eq(expected), "{index}");
                }
            }
        }
    }
}
