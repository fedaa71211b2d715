//! Root-mean-square normalization.

use crate::Pool;

/// Normalizes each row of `columns` values: `out = x / sqrt(mean(x²) + epsilon) * weight`.
///
/// # Panics
/// When `x` is no whole number of rows, `weight` is not as long as a row, or `out` not as long as `x`.
pub fn rms_norm(pool: &Pool, x: &[f32], columns: usize, weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output must have the same size");
    out.copy_from_slice(x);
    rms_norm_in_place(pool, out, columns, weight, epsilon);
}

/// As [`rms_norm`], in place. With `columns` the size of a head, it normalizes queries and keys head by head.
///
/// # Panics
/// When `x` is no whole number of rows, or `weight` is not as long as a row.
pub fn rms_norm_in_place(_pool: &Pool, x: &mut [f32], columns: usize, weight: &[f32], epsilon: f32) {
    assert!(columns > 0 && x.len().is_multiple_of(columns), "{} values are no rows of {columns}", x.len());
    assert_eq!(weight.len(), columns, "the norm needs one weight per column");
    for row in x.chunks_exact_mut(columns) {
        let mean = row.iter().map(|value| value * value).sum::<f32>() / columns as f32;
        let factor = 1.0 / (mean + epsilon).sqrt();
        for (value, weight) in row.iter_mut().zip(weight) {
            *value = *value * factor * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_get_unit_mean_square() {
        let pool = Pool::new(1).unwrap();
        let mut out = [0.0; 4];
        rms_norm(&pool, &[3.0, -3.0, 1.0, 7.0], 2, &[1.0, 2.0], 0.0, &mut out);
        assert_eq!(out, [1.0, -2.0, 0.2, 2.8]);
    }
}
