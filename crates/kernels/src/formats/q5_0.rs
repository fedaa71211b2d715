//! Q5_0: 32 values of 5 bits around 16. Bytes: scale (2), fifth bits (4, value `i` in bit `i`), low four bits (16).

use super::{Format, Quantized, half_at, nibbles, pack_fifth_bits, pack_halves, pack_words, part, split_nibble};
use crate::simd::{LANES, Simd};

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
    const ZERO_SHIFT: Option<u32> = Some(4);
    const PACKED_BYTES: usize = 176;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[0..16]);
        pack_fifth_bits(rows, 2, &mut packed[16..48]);
        pack_words(rows, 6..22, &mut packed[48..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        let high = simd.load_codes(part(packed, 16));
        let low = nibbles(simd, packed, 48, i);
        simd.or(low, simd.shift_and_mask(high, 4 - i as i32, 0x10))
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_f16(part(packed, 0)); 2]
    }
}
