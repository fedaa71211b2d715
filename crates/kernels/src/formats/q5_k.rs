//! Q5_K: 256 values of 5 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! Bytes: scale of the scales (2), scale of the minimums (2), scales and minimums (12), fifth bits (32; value `i` in bit
//! `i / 32` of byte `i % 32`), low four bits (128, as in Q4_K).

use super::{Factors, Format, Quantized, factors_with_minimums, half_at, part, unpack_scales_and_minimums};
use crate::simd::Simd;

pub(crate) struct Q5K;

impl Format for Q5K {
    const VALUES: usize = 256;
    const BYTES: usize = 176;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let (scales, minimums) = unpack_scales_and_minimums(part(block, 4));
        for (i, value) in out.iter_mut().enumerate() {
            let low = (block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 0x0f;
            let high = (block[16 + i % 32] >> (i / 32)) & 1;
            let code = f32::from(low | (high << 4));
            *value = scale * f32::from(scales[i / 32]) * code - minimum * f32::from(minimums[i / 32]);
        }
    }
}

impl Quantized for Q5K {
    #[inline(always)]
    fn factors<S: Simd>(simd: S, block: &[u8]) -> Factors<S> {
        factors_with_minimums(simd, part(block, 0))
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, block: &[u8], index: usize) -> S::Codes {
        let pair = simd.load_codes(part(block, 48 + index / 2 * 32));
        let low = simd.shift_and_mask(pair, index as i32 % 2 * -4, 0x0f);
        let fifth_bits = simd.load_codes(part(block, 16));
        simd.or(low, simd.shift_and_mask(fifth_bits, 4 - index as i32, 0x10))
    }
}
