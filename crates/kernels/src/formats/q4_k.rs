//! Q4_K: 256 values of 4 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! Bytes: scale of the scales (2), scale of the minimums (2), scales and minimums (12), codes (128; groups `2 n` and
//! `2 n + 1` in the low and the high halves of bytes `32 n` to `32 n + 31`).

use super::{
    Format, Quantized, VECTORS, half_at, minimum_of_block, pack_scales_and_minimums, pack_words, part, scale_of_block,
    unpack_scales_and_minimums,
};
use crate::simd::{CODES, LANES, Simd};

pub(crate) struct Q4K;

impl Format for Q4K {
    const VALUES: usize = 256;
    const BYTES: usize = 144;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let (scales, minimums) = unpack_scales_and_minimums(part(block, 4));
        for (i, value) in out.iter_mut().enumerate() {
            let code = (block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 0x0f;
            *value = scale * f32::from(scales[i / 32]) * f32::from(code) - minimum * f32::from(minimums[i / 32]);
        }
    }
}

impl Quantized for Q4K {
    const MINIMUMS: bool = true;
    const PACKED_BYTES: usize = 1184;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_scales_and_minimums(rows, packed);
        pack_words(rows, 16..144, &mut packed[160..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes {
        let right = (block % 2 * 4) as u32;
        let pair = simd.load_codes(part(packed, 160 + (block / 2 * VECTORS + i) * CODES));
        simd.shift_right_and_mask(pair, right, 0x0f)
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
