//! Products of activations with weight matrices.

use crate::formats::{Format, with_format};
use crate::pool::SharedValues;
use crate::{Activations, Matrix, Pool};

/// One matrix to multiply with, and where the result goes: output `r` of token `t` to `out[t * stride + r]`.
pub struct Product<'a> {
    /// The weights, `[rows, columns]`.
    pub weights: &'a Matrix,
    /// One value to add to each output, if any.
    pub bias: Option<&'a [f32]>,
    /// The outputs; values between them (when `stride` is larger than `rows`) stay as they are.
    pub out: &'a mut [f32],
    /// The distance in `out` between an output of one token and the same output of the next.
    pub stride: usize,
}

/// Multiplies all tokens of `input` with each of the matrices, in one parallel region.
///
/// # Panics
/// When a matrix does not have the columns of `input`, a bias does not have one value per row, or an `out` is too short.
pub fn multiply(pool: &Pool, input: &Activations, products: &mut [Product<'_>]) {
    let threads = pool.threads();
    for product in products {
        check(input, product);
        let (weights, bias, stride) = (product.weights, product.bias, product.stride);
        let out = SharedValues::new(product.out);
        pool.run(&|worker| {
            for row in (worker..weights.rows()).step_by(threads) {
                for token in 0..input.tokens() {
                    let sum = dot_row(weights, row, input.row(token));
                    out.set(token * stride + row, sum + bias.map_or(0.0, |bias| bias[row]));
                }
            }
        });
    }
}

fn check(input: &Activations, product: &Product<'_>) {
    let (rows, columns) = (product.weights.rows(), product.weights.columns());
    assert_eq!(columns, input.columns(), "the matrix must have as many columns as the input");
    assert!(product.bias.is_none_or(|bias| bias.len() == rows), "a bias has one value per row");
    if input.tokens() > 0 && rows > 0 {
        assert!(product.stride >= rows, "the outputs of one token must not overlap the next's");
        assert!(product.out.len() >= (input.tokens() - 1) * product.stride + rows, "the output is too short");
    }
}

fn dot_row(weights: &Matrix, row: usize, x: &[f32]) -> f32 {
    let mut values = [0.0; 256];
    let mut sum = 0.0;
    with_format!(weights.dtype(), F => {
        for (block, x) in weights.row(row).chunks_exact(F::BYTES).zip(x.chunks_exact(F::VALUES)) {
            F::dequantize(block, &mut values[..F::VALUES]);
            for (weight, x) in values.iter().zip(x) {
                sum += weight * x;
            }
        }
    });
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use bytes::Bytes;

    #[test]
    fn small_product_with_bias_and_stride() {
        let weights: [f32; 6] = [1.0, 2.0, 3.0, -1.0, 0.5, 2.0];
        let weights = Matrix::new(DType::F32, 2, 3, Bytes::copy_from_slice(bytemuck::cast_slice(&weights))).unwrap();
        let pool = Pool::new(2).unwrap();
        let mut input = Activations::new(2, 3);
        input.load(&pool, &[1.0, 1.0, 1.0, 2.0, 0.0, -1.0], 3);
        let mut out = [9.0; 6];
        multiply(
            &pool,
            &input,
            &mut [Product { weights: &weights, bias: Some(&[0.0, 10.0]), out: &mut out, stride: 3 }],
        );
        assert_eq!(out, [6.0, 11.5, 9.0, -1.0, 6.0, 9.0]);
    }
}
