//! Q4_1: 32 values of 4 bits above a minimum. Bytes: scale (2), minimum (2), codes (16).

use super::{Format, Quantized, half_at, nibbles, pack_halves, pack_words, part, split_nibble};
use crate::simd::{LANES, Simd};

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
    const MINIMUMS: bool = true;
    const PACKED_BYTES: usize = 160;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[0..16]);
        pack_halves(rows, 2, &mut packed[16..32]);
        pack_words(rows, 4..20, &mut packed[32..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        nibbles(simd, packed, 32, i)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_f16(part(packed, 0)); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_f16(part(packed, 16)); 2]
    }
}
