//! Q5_1: 32 values of 5 bits above a minimum. Bytes: scale (2), minimum (2), fifth bits (4), low four bits (16).

use super::{Format, Quantized, half_at, nibbles, pack_fifth_bits, pack_halves, pack_words, part, split_nibble};
use crate::simd::{LANES, Simd};

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
    const MINIMUMS: bool = true;
    const PACKED_BYTES: usize = 192;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[0..16]);
        pack_halves(rows, 2, &mut packed[16..32]);
        pack_fifth_bits(rows, 4, &mut packed[32..64]);
        pack_words(rows, 8..24, &mut packed[64..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        let high = simd.load_codes(part(packed, 32));
        let low = nibbles(simd, packed, 64, i);
        simd.or(low, simd.shift_and_mask(high, 4 - i as i32, 0x10))
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
