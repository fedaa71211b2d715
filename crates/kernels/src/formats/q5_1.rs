//! Q5_1: 32 values of 5 bits above a minimum. Bytes: scale (2), minimum (2), fifth bits (4), low four bits (16).

use super::{Factors, Format, Quantized, half_at, part, split_nibble, starts};
use crate::simd::Simd;

pub(crate) struct Q5_1;

impl Format for Q5_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 24;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        for (i, value) in out.iter_mut().enumerate() {
            let high = (block[4 + i / 8] >> (i % 8)) & 1;
            *value = scale * f32::from(split_nibble(&block[8..], i) | (high << 4)) + minimum;
        }
    }
}

impl Quantized for Q5_1 {
    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        let scales = simd.widen_halves(starts::<24, 2, _>(bytes, u16::from_le_bytes));
        let offsets = simd.widen_halves(starts::<24, 4, _>(bytes, |[_, _, low, high]| u16::from_le_bytes([low, high])));
        Factors::Blocks { scales, offsets }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        let high = simd.expand_bits(u32::from_le_bytes(*part(bytes, 24 * block + 4)), 16);
        simd.or(simd.split_nibbles(part(bytes, 24 * block + 8)), high)
    }
}
