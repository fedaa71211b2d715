//! Q4_0: 32 values of 4 bits around 8, one half-precision scale. Bytes: scale (2), codes (16).

use super::{Format, Quantized, half_at, nibbles, pack_halves, pack_words, part, split_nibble};
use crate::simd::{LANES, Simd};

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
    const ZERO_SHIFT: Option<u32> = Some(3);
    const PACKED_BYTES: usize = 144;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[0..16]);
        pack_words(rows, 2..18, &mut packed[16..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        nibbles(simd, packed, 16, i)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_f16(part(packed, 0)); 2]
    }
}
