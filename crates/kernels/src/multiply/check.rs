//! Whether products are right on this machine: a broken processor, an emulated one or a compiler's mistake would otherwise
//! show as nonsense in the text.

use std::ops::Range;

use super::{Target, multiply_rows, multiply_rows_portably};
use crate::matrix::ROWS;
use crate::pool::SharedValues;
use crate::{Activations, DType, Forms, KernelError, Matrix, Pool, Rows};

/// Enough for kernels that take many tokens at a time, and one more for those that take one.
const TOKENS: usize = 9;

/// Compares the vector instructions that products use on this machine with plain code: the first rows of the first matrix of
/// each format, with random inputs. Takes about a millisecond for each format.
///
/// # Errors
/// When they do not agree to the last bit.
pub fn check_products<'a>(matrices: impl Iterator<Item = &'a Matrix>) -> Result<(), KernelError> {
    let mut checked: Vec<DType> = Vec::new();
    for matrix in matrices {
        if !checked.contains(&matrix.dtype()) {
            checked.push(matrix.dtype());
            check(matrix, multiply_rows)?;
        }
    }
    Ok(())
}

/// Compares `fast` with plain code.
fn check(weights: &Matrix, fast: impl Fn(&Activations, &Target<'_>, Range<usize>)) -> Result<(), KernelError> {
    let (rows, columns) = (weights.rows().min(ROWS), weights.columns());
    let x = random_values(TOKENS * columns);
    let mut input = Activations::new(TOKENS, columns);
    input.load(&Pool::new(1)?, &Rows::Plain { x: &x, columns }, Forms::for_weights(&[weights]));
    let (mut found, mut expected) = (vec![0.0; TOKENS * rows], vec![0.0; TOKENS * rows]);
    let target = |out| Target { weights, bias: None, tokens: 0..TOKENS, out: SharedValues::new(out), stride: rows };
    fast(&input, &target(&mut found), 0..rows);
    multiply_rows_portably(&input, &target(&mut expected), 0..rows);
    // What is not a number may come from damaged weights, and has more than one form.
    let agree = |(a, b): &(f32, f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    match found.into_iter().zip(expected).find(|pair| !agree(pair)) {
        Some((found, expected)) => Err(KernelError::WrongProduct { dtype: weights.dtype(), found, expected }),
        None => Ok(()),
    }
}

/// Values between -1 and 1, the same ones each time, so that a failure comes back (Knuth's linear congruential generator).
fn random_values(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Numbers, random_weights};
    use super::*;

    #[test]
    fn this_machine_is_right_about_all_formats() {
        let matrices: Vec<_> =
            DType::ALL.iter().map(|&dtype| random_weights(dtype, 11, 512, &mut Numbers(3))).collect();
        check_products(matrices.iter()).unwrap();
        check_products(matrices.iter().map(|matrix| matrix.select_rows(0..0)).collect::<Vec<_>>().iter()).unwrap();
    }

    #[test]
    fn a_wrong_kernel_is_found() {
        for &dtype in DType::ALL {
            let weights = random_weights(dtype, 5, 256, &mut Numbers(3));
            // The last output of the last token is off by one bit.
            let wrong = |input: &Activations, target: &Target<'_>, rows: Range<usize>| {
                let mut outputs = vec![0.0; TOKENS * 5];
                multiply_rows(
                    input,
                    &Target { tokens: target.tokens.clone(), out: SharedValues::new(&mut outputs), ..*target },
                    rows,
                );
                let last = outputs.len() - 1;
                outputs[last] = f32::from_bits(outputs[last].to_bits() ^ 1);
                outputs.into_iter().enumerate().for_each(|(index, value)| target.out.set(index, value));
            };
            let error = check(&weights, wrong).unwrap_err();
            assert!(matches!(error, KernelError::WrongProduct { dtype: of, .. } if of == dtype), "{error}");
            check(&weights, multiply_rows).unwrap();
        }
    }
}
