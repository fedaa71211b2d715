//! Q6_K: 256 values of 6 bits around 32 in 16 groups of 16, each with a signed 8-bit scale.
//!
//! Bytes: low four bits (128; of each 128 values, 64 in low halves, then 64 in high halves of 64 bytes), top two bits
//! (64, as the codes of Q2_K), scales (16), scale of the scales (2).

use super::{Factors, Format, Quantized, all_halves, half_at, part};
use crate::simd::Simd;

pub(crate) struct Q6K;

impl Format for Q6K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 208);
        for (i, value) in out.iter_mut().enumerate() {
            let low = (block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4)) & 0x0f;
            let high = (block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
            let group_scale = scale * f32::from(block[192 + i / 16].cast_signed());
            *value = group_scale * (f32::from(low | (high << 4)) - 32.0);
        }
    }
}

impl Quantized for Q6K {
    const HALVES: bool = true;

    #[inline(always)]
    fn factors<S: Simd>(simd: S, block: &[u8]) -> Factors<S> {
        let scale = all_halves(simd, block, 208);
        let low = simd.mul(scale, simd.widen_bytes(part(block, 192)));
        let high = simd.mul(scale, simd.widen_bytes(part(block, 200)));
        let offset = simd.splat(-32.0);
        Factors::Halves { scales: [low, high], offsets: [simd.mul(low, offset), simd.mul(high, offset)] }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, block: &[u8], index: usize) -> S::Codes {
        // Within each half of the block: two times 32 values in the low halves of 64 bytes, two times in the high halves.
        let (half, quarter) = (index / 4, index % 4);
        let low = simd.load_codes(part(block, 64 * half + quarter % 2 * 32));
        let low = simd.shift_and_mask(low, quarter as i32 / 2 * -4, 0x0f);
        let high = simd.load_codes(part(block, 128 + 32 * half));
        simd.or(low, simd.shift_and_mask(high, 4 - 2 * quarter as i32, 0x30))
    }
}
