//! Q2_K: 256 values of 2 bits in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! Bytes: scales (16; scale in the low half, minimum in the high half), codes (64), scale of the scales (2), scale of
//! the minimums (2). Values 0 to 127 lie in the first 32 code bytes, 32 at a time in bits 0-1, 2-3, 4-5, 6-7; the others
//! likewise in the last 32.

use super::{Format, Quantized, Sink, half_at, part};
use crate::simd::Simd;

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
    #[inline(always)]
    fn unpack<S: Simd>(simd: S, block: &[u8], sink: &mut impl Sink<S>) {
        let halves = |offset| simd.widen_halves([u16::from_le_bytes(*part(block, offset)); 8]);
        let (scale, minimum) = (halves(80), simd.sub(simd.splat(0.0), halves(82)));
        let packed = [0, 8].map(|from| -> [u8; 8] { *part(block, from) });
        let scales = packed.map(|packed| simd.mul(scale, simd.widen_bytes(packed.map(|p| (p & 0x0f).cast_signed()))));
        for i in 0..8 {
            let (half, quarter) = (i / 4, i % 4);
            let codes = simd.load_codes(part(block, 16 + 32 * half));
            let codes = simd.shift_and_mask(codes, -2 * quarter as i32, 3);
            sink.block(i, codes, simd.spread_pair(scales[half], quarter));
        }
        sink.half_offsets(
            packed.map(|packed| simd.mul(minimum, simd.widen_bytes(packed.map(|p| (p >> 4).cast_signed())))),
        );
    }
}
