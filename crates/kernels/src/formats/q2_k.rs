//! Q2_K: 256 values of 2 bits in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! Bytes: scales (16; scale in the low half, minimum in the high half), codes (64), scale of the scales (2), scale of
//! the minimums (2). Values 0 to 127 lie in the first 32 code bytes, 32 at a time in bits 0-1, 2-3, 4-5, 6-7; the others
//! likewise in the last 32.

use super::{Factors, Format, Quantized, all_halves, half_at, part};
use crate::simd::{CODES, Simd};

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

    #[inline(always)]
    fn factors<S: Simd>(simd: S, block: &[u8]) -> Factors<S> {
        let scale = all_halves(simd, block, 80);
        let minimum = simd.sub(simd.splat(0.0), all_halves(simd, block, 82));
        let packed = simd.load_codes(part(block, 0));
        let mut scales = [0; CODES];
        simd.store_codes(simd.shift_and_mask(packed, 0, 0x0f), &mut scales);
        let mut minimums = [0; CODES];
        simd.store_codes(simd.shift_and_mask(packed, -4, 0x0f), &mut minimums);
        let scaled = [simd.widen_bytes(part(&scales, 0)), simd.widen_bytes(part(&scales, 8))];
        let offsets = [simd.widen_bytes(part(&minimums, 0)), simd.widen_bytes(part(&minimums, 8))];
        Factors::Halves {
            scales: [simd.mul(scale, scaled[0]), simd.mul(scale, scaled[1])],
            offsets: [simd.mul(minimum, offsets[0]), simd.mul(minimum, offsets[1])],
        }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, block: &[u8], index: usize) -> S::Codes {
        let codes = simd.load_codes(part(block, 16 + index / 4 * 32));
        simd.shift_and_mask(codes, index as i32 % 4 * -2, 3)
    }
}
