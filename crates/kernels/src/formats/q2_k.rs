//! Q2_K: 256 values of 2 bits in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! Bytes: scales (16; scale in the low half, minimum in the high half), codes (64), scale of the scales (2), scale of
//! the minimums (2). Values 0 to 127 lie in the first 32 code bytes, 32 at a time in bits 0-1, 2-3, 4-5, 6-7; the others
//! likewise in the last 32.

use super::{Format, Quantized, VECTORS, half_at, pack_bytes, pack_halves, pack_words, part};
use crate::simd::{CODES, LANES, Simd};

pub(crate) struct Q2K;

impl Format for Q2K {
    const VALUES: usize = 256;
    const BYTES: usize = 84;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
        for (i, value) in out.iter_mut().enumerate() {
            let packed = block[i / 16];
            let code = (block[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
            *value = scale * f32::from(packed & 0x0f) * f32::from(code) - minimum * f32::from(packed >> 4);
        }
    }
}

impl Quantized for Q2K {
    const HALVES: bool = true;
    const MINIMUMS: bool = true;
    const PACKED_BYTES: usize = 800;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 80, &mut packed[..16]);
        pack_halves(rows, 82, &mut packed[16..32]);
        pack_bytes(rows, |row| part::<16>(row, 0).map(|both| both & 0x0f), &mut packed[32..160]);
        pack_bytes(rows, |row| part::<16>(row, 0).map(|both| both >> 4), &mut packed[160..288]);
        pack_words(rows, 16..80, &mut packed[288..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes {
        let right = (block % 4 * 2) as u32;
        let codes = simd.load_codes(part(packed, 288 + (block / 4 * VECTORS + i) * CODES));
        simd.shift_right_and_mask(codes, right, 3)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2] {
        let scale = simd.load_f16(part(packed, 0));
        let of_half = 2 * block * LANES;
        [
            simd.mul(scale, simd.widen_bytes(part(packed, 32 + of_half))),
            simd.mul(scale, simd.widen_bytes(part(packed, 32 + of_half + LANES))),
        ]
    }

    #[inline(always)]
    fn minimums<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2] {
        let minimum = simd.sub(simd.splat(0.0), simd.load_f16(part(packed, 16)));
        let of_half = 2 * block * LANES;
        [
            simd.mul(minimum, simd.widen_bytes(part(packed, 160 + of_half))),
            simd.mul(minimum, simd.widen_bytes(part(packed, 160 + of_half + LANES))),
        ]
    }
}
