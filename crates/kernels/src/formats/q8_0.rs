//! Q8_0: 32 signed 8-bit values, one half-precision scale. Bytes: scale (2), codes (32).

use super::{Format, Quantized, half_at, pack_halves, pack_words, part};
use crate::simd::{CODES, LANES, Simd};

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
    // Packed codes are unsigned, 128 more than they stand for.
    const ZERO_SHIFT: Option<u32> = Some(7);
    const WIDE: bool = true;
    const PACKED_BYTES: usize = 272;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[..16]);
        pack_words(rows, 2..34, &mut packed[16..]);
        packed[16..].iter_mut().for_each(|code| *code ^= 0x80);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        simd.load_codes(part(packed, 16 + i * CODES))
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_f16(part(packed, 0)); 2]
    }
}
