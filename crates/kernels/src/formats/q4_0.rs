//! Q4_0: 32 values of 4 bits around 8, one half-precision scale. Bytes: scale (2), codes (16).

use super::{Factors, Format, Quantized, half_at, part, split_nibble, starts};
use crate::simd::Simd;

pub(crate) struct Q4_0;

impl Format for Q4_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 18;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * (f32::from(split_nibble(&block[2..], i)) - 8.0);
        }
    }
}

impl Quantized for Q4_0 {
    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        let scales = simd.widen_halves(starts::<18, 2, _>(bytes, u16::from_le_bytes));
        Factors::Blocks { scales, offsets: simd.mul(scales, simd.splat(-8.0)) }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        simd.split_nibbles(part(bytes, 18 * block + 2))
    }
}
