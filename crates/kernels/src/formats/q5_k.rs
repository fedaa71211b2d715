//! Q5_K: 256 values of 5 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! Bytes: scale of the scales (2), scale of the minimums (2), scales and minimums (12), fifth bits (32; value `i` in bit
//! `i / 32` of byte `i % 32`), low four bits (128, as in Q4_K).

use super::{
    Format, Quantized, VECTORS, half_at, minimum_of_block, pack_scales_and_minimums, pack_words, part, scale_of_block,
    unpack_scales_and_minimums,
};
use crate::simd::{CODES, LANES, Simd};

pub(crate) struct Q5K;

impl Format for Q5K {
    const VALUES: usize = 256;
    const BYTES: usize = 176;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let (scales, minimums) = unpack_scales_and_minimums(part(block, 4));
        for (i, value) in out.iter_mut().enumerate() {
            let low = (block[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 0x0f;
            let high = (block[16 + i % 32] >> (i / 32)) & 1;
            let code = f32::from(low | (high << 4));
            *value = scale * f32::from(scales[i / 32]) * code - minimum * f32::from(minimums[i / 32]);
        }
    }
}

impl Quantized for Q5K {
    const MINIMUMS: bool = true;
    const PACKED_BYTES: usize = 1440;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_scales_and_minimums(rows, packed);
        pack_words(rows, 16..176, &mut packed[160..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes {
        let (right, block_right) = ((block % 2 * 4) as u32, block as u32);
        let pair = simd.load_codes(part(packed, 416 + (block / 2 * VECTORS + i) * CODES));
        let fifth_bits = simd.load_codes(part(packed, 160 + i * CODES));
        let fifth_bit = simd.shift_right_and_mask(fifth_bits, block_right, 1);
        simd.or(simd.shift_right_and_mask(pair, right, 0x0f), simd.shift_and_mask(fifth_bit, 4, 0x10))
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2] {
        [scale_of_block(simd, packed, block); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2] {
        [minimum_of_block(simd, packed, block); 2]
    }
}
