//! IQ4_NL: 32 values, each one of 16 unevenly spaced levels, one half-precision scale. Bytes: scale (2), codes (16).

use super::{Format, Quantized, half_at, nibbles, pack_halves, pack_words, part, split_nibble};
use crate::simd::{LANES, Simd};

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

/// The same plus 128, so that all are unsigned.
pub(super) const RAISED_LEVELS: [i8; 16] = raised(LEVELS);

const fn raised(levels: [i8; 16]) -> [i8; 16] {
    let mut raised = levels;
    let mut i = 0;
    while i < raised.len() {
        raised[i] ^= -128;
        i += 1;
    }
    raised
}

impl Quantized for Iq4Nl {
    const ZERO_SHIFT: Option<u32> = Some(7);
    const WIDE: bool = true;
    const PACKED_BYTES: usize = 144;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[..16]);
        pack_words(rows, 2..18, &mut packed[16..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        simd.look_up(nibbles(simd, packed, 16, i), &RAISED_LEVELS)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_f16(part(packed, 0)); 2]
    }
}
