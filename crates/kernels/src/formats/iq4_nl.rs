//! IQ4_NL: 32 values, each one of 16 unevenly spaced levels, one half-precision scale. Bytes: scale (2), codes (16).

use super::{Factors, Format, Quantized, half_at, part, split_nibble, starts};
use crate::simd::Simd;

pub(crate) struct Iq4Nl;

/// What the 4-bit codes of IQ4_NL and IQ4_XS stand for.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Format for Iq4Nl {
    const VALUES: usize = 32;
    const BYTES: usize = 18;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(LEVELS[usize::from(split_nibble(&block[2..], i))]);
        }
    }
}

impl Quantized for Iq4Nl {
    const SIGNED: bool = true;

    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        Factors::signed(simd, simd.widen_halves(starts::<18, 2, _>(bytes, u16::from_le_bytes)))
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        simd.look_up(simd.split_nibbles(part(bytes, 18 * block + 2)), &LEVELS)
    }
}
