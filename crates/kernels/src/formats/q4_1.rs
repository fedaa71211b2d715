//! Q4_1: 32 values of 4 bits above a minimum. Bytes: scale (2), minimum (2), codes (16).

use super::{Factors, Format, Quantized, half_at, part, split_nibble, starts};
use crate::simd::Simd;

pub(crate) struct Q4_1;

impl Format for Q4_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 20;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(split_nibble(&block[4..], i)) + minimum;
        }
    }
}

impl Quantized for Q4_1 {
    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        let scales = simd.widen_halves(starts::<20, 2, _>(bytes, u16::from_le_bytes));
        let offsets = simd.widen_halves(starts::<20, 4, _>(bytes, |[_, _, low, high]| u16::from_le_bytes([low, high])));
        Factors::Blocks { scales, offsets }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        simd.split_nibbles(part(bytes, 20 * block + 4))
    }
}
