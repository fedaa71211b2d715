//! Q5_0: 32 values of 5 bits around 16. Bytes: scale (2), fifth bits (4, value `i` in bit `i`), low four bits (16).

use super::{Factors, Format, Quantized, half_at, part, split_nibble, starts};
use crate::simd::Simd;

pub(crate) struct Q5_0;

impl Format for Q5_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 22;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (i, value) in out.iter_mut().enumerate() {
            let high = (block[2 + i / 8] >> (i % 8)) & 1;
            *value = scale * (f32::from(split_nibble(&block[6..], i) | (high << 4)) - 16.0);
        }
    }
}

impl Quantized for Q5_0 {
    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        let scales = simd.widen_halves(starts::<22, 2, _>(bytes, u16::from_le_bytes));
        Factors::Blocks { scales, offsets: simd.mul(scales, simd.splat(-16.0)) }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        let high = simd.expand_bits(u32::from_le_bytes(*part(bytes, 22 * block + 2)), 16);
        simd.or(simd.split_nibbles(part(bytes, 22 * block + 6)), high)
    }
}
