//! Q8_0: 32 signed 8-bit values, one half-precision scale. Bytes: scale (2), codes (32).

use super::{Factors, Format, Quantized, half_at, part, starts};
use crate::simd::Simd;

pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (value, code) in out.iter_mut().zip(&block[2..]) {
            *value = f32::from(code.cast_signed()) * scale;
        }
    }
}

impl Quantized for Q8_0 {
    const SIGNED: bool = true;

    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        Factors::signed(simd, simd.widen_halves(starts::<34, 2, _>(bytes, u16::from_le_bytes)))
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        simd.load_codes(part(bytes, 34 * block + 2))
    }
}
