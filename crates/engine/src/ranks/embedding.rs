//! One embedding out of the hidden states of a text's tokens.

use crate::request::Pooling;

/// What has come of a text so far.
pub(crate) struct Embedding {
    pooling: Pooling,
    /// Sums, or the hidden state of the last token.
    values: Vec<f32>,
    /// Tokens that were heard of, and that there are.
    heard: usize,
    tokens: usize,
}

impl Embedding {
    /// Of a text of so many tokens.
    pub(crate) fn new(pooling: Pooling, tokens: usize) -> Self {
        Self { pooling, values: Vec::new(), heard: 0, tokens }
    }

    /// Hears the hidden states of further tokens, `[tokens, width]`, or of the last one. Returns the embedding when it is
    /// complete. Sums are made token by token, so that it does not depend on how the text was cut.
    pub(crate) fn hear(&mut self, hidden: &[f32], width: usize) -> Option<Vec<f32>> {
        self.values.resize(width, 0.0);
        match self.pooling {
            Pooling::Last | Pooling::Ranking => {
                self.values.copy_from_slice(&hidden[hidden.len().checked_sub(width)?..]);
                self.heard = self.tokens;
            }
            Pooling::Mean => {
                for token in hidden.chunks_exact(width) {
                    self.values.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
                }
                self.heard += hidden.len() / width.max(1);
            }
        }
        let values = (self.heard >= self.tokens).then(|| std::mem::take(&mut self.values))?;
        Some(if self.pooling == Pooling::Ranking { values } else { normalized(values) })
    }
}

/// Scales to length 1, which makes a mean of a sum as well. What has no length stays as it is.
fn normalized(mut values: Vec<f32>) -> Vec<f32> {
    let length = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
    if length > 0.0 && length.is_finite() {
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_does_not_depend_on_the_cuts() {
        let hidden: Vec<f32> = (0..12).map(|i| (i * i) as f32 - 3.0).collect();
        let mut whole = Embedding::new(Pooling::Mean, 4);
        let expected = whole.hear(&hidden, 3).unwrap();
        let mut cut = Embedding::new(Pooling::Mean, 4);
        assert_eq!(cut.hear(&hidden[..3], 3), None);
        assert_eq!(cut.hear(&hidden[3..9], 3), None);
        assert_eq!(cut.hear(&hidden[9..], 3), Some(expected.clone()));
        let length: f32 = expected.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_last_token_can_stand_for_all() {
        let mut last = Embedding::new(Pooling::Last, 9);
        assert_eq!(last.hear(&[1.0, 1.0, 3.0, 4.0], 2), Some(vec![0.6, 0.8]));
        let mut ranking = Embedding::new(Pooling::Ranking, 9);
        assert_eq!(ranking.hear(&[1.0, 1.0, 3.0, 4.0], 2), Some(vec![3.0, 4.0]));
        assert_eq!(normalized(vec![0.0, 0.0]), [0.0, 0.0]);
    }
}
