//! Q4_K: 256 values of 4 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! Bytes: scale of the scales (2), scale of the minimums (2), scales and minimums (12), codes (128; groups `2 n` and
//! `2 n + 1` in the low and the high halves of bytes `32 n` to `32 n + 31`).

use super::{Factors, Format, Quantized, factors_with_minimums, half_at, part, unpack_scales_and_minimums};
use crate::simd::Simd;

pub(crate) struct Q4K;

impl Format for Q4K {
    const VALUES: usize = 256;
    const BYTES: usize = 144;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let (scales, minimums) = unpack_scales_and_minimums(part(block, 4));
        for (i, value) in out.iter_mut().enumerate() {
            let code = (block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 0x0f;
            *value = scale * f32::from(scales[i / 32]) * f32::from(code) - minimum * f32::from(minimums[i / 32]);
        }
    }
}

impl Quantized for Q4K {
    #[inline(always)]
    fn factors<S: Simd>(simd: S, block: &[u8]) -> Factors<S> {
        factors_with_minimums(simd, part(block, 0))
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, block: &[u8], index: usize) -> S::Codes {
        let pair = simd.load_codes(part(block, 16 + index / 2 * 32));
        simd.shift_and_mask(pair, index as i32 % 2 * -4, 0x0f)
    }
}
