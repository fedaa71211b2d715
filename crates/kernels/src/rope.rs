//! Rotary position embedding.

/// Which values of a head form the pairs that are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Values `2 i` and `2 i + 1`, as GGUF files of the llama family have it.
    Interleaved,
    /// Values `i` and `i + rotary_dim / 2`, as most other families have it ("NeoX").
    Halves,
}

/// The angles by which the heads of some tokens are rotated.
pub struct RopeAngles {
    inverse_frequencies: Vec<f32>,
    magnitude: f32,
    /// Cosine and sine for each token and frequency, `[tokens, frequencies]`, times the magnitude.
    turns: Vec<[f32; 2]>,
    tokens: usize,
}

impl RopeAngles {
    /// Angles for up to `max_tokens` tokens at a time. Pair `i` of a head at position `p` turns by
    /// `p * inverse_frequencies[i]`; `magnitude` scales the result (1 except in some long-context schemes).
    pub fn new(inverse_frequencies: Vec<f32>, magnitude: f32, max_tokens: usize) -> RopeAngles {
        let turns = vec![[0.0; 2]; max_tokens * inverse_frequencies.len()];
        RopeAngles { inverse_frequencies, magnitude, turns, tokens: 0 }
    }

    /// Computes the angles of some tokens, given the position of each.
    ///
    /// # Panics
    /// When there are more positions than the `max_tokens` of [`RopeAngles::new`].
    pub fn prepare(&mut self, positions: impl IntoIterator<Item = usize>) {
        let frequencies = self.inverse_frequencies.len();
        self.tokens = 0;
        for position in positions {
            let first = self.tokens * frequencies;
            self.tokens += 1;
            assert!(first + frequencies <= self.turns.len(), "no room for the angles of {} tokens", self.tokens);
            let turns = &mut self.turns[first..first + frequencies];
            for (turn, frequency) in turns.iter_mut().zip(&self.inverse_frequencies) {
                // The angle is rounded to single precision, as the models were trained; its sine and cosine are taken in
                // double precision so that they come out the same with every mathematics library.
                let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
                *turn = [cosine as f32 * self.magnitude, sine as f32 * self.magnitude];
            }
        }
    }

    /// Rotates the first `2 * frequencies` values of each head of `x`, `[tokens, heads, head_dim]`, token `t` by the angles
    /// of the `first + t`-th position prepared.
    ///
    /// # Panics
    /// When `x` is not of whole tokens, more than were prepared, or the heads are smaller than the rotation.
    pub fn rotate(&self, layout: RopeLayout, first: usize, x: &mut [f32], heads: usize, head_dim: usize) {
        let frequencies = self.inverse_frequencies.len();
        assert!(2 * frequencies <= head_dim, "cannot rotate {} of {head_dim} values", 2 * frequencies);
        if frequencies == 0 || heads == 0 {
            return;
        }
        let (tokens, size) = (x.len() / (heads * head_dim), heads * head_dim);
        assert!(x.len().is_multiple_of(size), "{} values are no tokens of {heads} heads of {head_dim}", x.len());
        assert!(first + tokens <= self.tokens, "only {} tokens were prepared", self.tokens);
        let turns = &self.turns[first * frequencies..];
        let tokens = x.chunks_exact_mut(size).zip(turns.chunks_exact(frequencies));
        for (heads, turns) in tokens {
            for head in heads.chunks_exact_mut(head_dim) {
                match layout {
                    RopeLayout::Interleaved => rotate_interleaved(head, turns),
                    RopeLayout::Halves => rotate_halves(head, turns),
                }
            }
        }
    }
}

fn rotate_interleaved(head: &mut [f32], turns: &[[f32; 2]]) {
    let (pairs, _) = head.as_chunks_mut::<2>();
    for (pair, turn) in pairs.iter_mut().zip(turns) {
        *pair = rotated(*pair, *turn);
    }
}

fn rotate_halves(head: &mut [f32], turns: &[[f32; 2]]) {
    let (first, second) = head.split_at_mut(turns.len());
    for ((x, y), turn) in first.iter_mut().zip(second).zip(turns) {
        [*x, *y] = rotated([*x, *y], *turn);
    }
}

#[inline]
fn rotated([x, y]: [f32; 2], [cosine, sine]: [f32; 2]) -> [f32; 2] {
    [x * cosine - y * sine, x * sine + y * cosine]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarter_turns() {
        let quarter = std::f32::consts::FRAC_PI_2;
        let mut angles = RopeAngles::new(vec![quarter, 0.0], 1.0, 2);
        angles.prepare([1, 2]);
        let head = [1.0, 2.0, 3.0, 4.0, 5.0];
        let close = |found: &[f32], expected: &[f32]| {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
            }
        };
        let mut x: Vec<f32> = [head, head].concat();
        angles.rotate(RopeLayout::Interleaved, 0, &mut x, 1, 5);
        close(&x, &[-2.0, 1.0, 3.0, 4.0, 5.0, -1.0, -2.0, 3.0, 4.0, 5.0]);
        let mut x: Vec<f32> = [head, head].concat();
        angles.rotate(RopeLayout::Halves, 0, &mut x, 1, 5);
        close(&x, &[-3.0, 2.0, 1.0, 4.0, 5.0, -1.0, 2.0, -3.0, 4.0, 5.0]);
    }
}
