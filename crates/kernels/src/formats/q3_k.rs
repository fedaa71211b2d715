//! Q3_K: 256 values of 3 bits around 4 in 16 groups of 16, each with a 6-bit scale around 32.
//!
//! Bytes: third bits (32; value `i` in bit `i / 32` of byte `i % 32`), low two bits (64, as in Q2_K), scales (12), scale
//! of the scales (2).

use super::{Factors, Format, Quantized, all_halves, half_at, part};
use crate::simd::Simd;

pub(crate) struct Q3K;

impl Q3K {
    /// The sixteen 6-bit scales, 32 too large: low four bits in the halves of bytes 0 to 7, top two bits in bytes 8 to 11.
    #[inline(always)]
    fn scales(packed: &[u8; 12]) -> [[u8; 8]; 2] {
        let low = u64::from_le_bytes(*part(packed, 0));
        let high = u64::from(u32::from_le_bytes(*part(packed, 8)));
        let top = |shift: u32| (((high >> shift) & 0x0303_0303) | (((high >> (shift + 2)) & 0x0303_0303) << 32)) << 4;
        let first = (low & 0x0f0f_0f0f_0f0f_0f0f) | top(0);
        let second = ((low >> 4) & 0x0f0f_0f0f_0f0f_0f0f) | top(4);
        [first.to_le_bytes(), second.to_le_bytes()]
    }
}

impl Format for Q3K {
    const VALUES: usize = 256;
    const BYTES: usize = 110;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 108);
        let scales = Q3K::scales(part(block, 96));
        for (i, value) in out.iter_mut().enumerate() {
            let low = (block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
            let high = (block[i % 32] >> (i / 32)) & 1;
            *value = scale * (f32::from(scales[i / 128][i / 16 % 8]) - 32.0) * (f32::from(low | (high << 2)) - 4.0);
        }
    }
}

impl Quantized for Q3K {
    const HALVES: bool = true;

    #[inline(always)]
    fn factors<S: Simd>(simd: S, block: &[u8]) -> Factors<S> {
        let scale = all_halves(simd, block, 108);
        let [low, high] = Q3K::scales(part(block, 96));
        let low = simd.mul(scale, simd.sub(simd.widen_bytes(&low), simd.splat(32.0)));
        let high = simd.mul(scale, simd.sub(simd.widen_bytes(&high), simd.splat(32.0)));
        let offset = simd.splat(-4.0);
        Factors::Halves { scales: [low, high], offsets: [simd.mul(low, offset), simd.mul(high, offset)] }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, block: &[u8], index: usize) -> S::Codes {
        let low = simd.load_codes(part(block, 32 + index / 4 * 32));
        let low = simd.shift_and_mask(low, index as i32 % 4 * -2, 3);
        let third_bits = simd.load_codes(part(block, 0));
        simd.or(low, simd.shift_and_mask(third_bits, 2 - index as i32, 4))
    }
}
