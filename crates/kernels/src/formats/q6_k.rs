//! Q6_K: 256 values of 6 bits around 32 in 16 groups of 16, each with a signed 8-bit scale.
//!
//! Bytes: low four bits (128; of each 128 values, 64 in low halves, then 64 in high halves of 64 bytes), top two bits
//! (64, as the codes of Q2_K), scales (16), scale of the scales (2).

use super::{Format, Quantized, VECTORS, half_at, pack_bytes, pack_halves, pack_words, part};
use crate::simd::{CODES, LANES, Simd};

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
    const ZERO_SHIFT: Option<u32> = Some(5);
    const HALVES: bool = true;
    const PACKED_BYTES: usize = 1680;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 208, &mut packed[..16]);
        pack_bytes(rows, |row| *part::<16>(row, 192), &mut packed[16..144]);
        pack_words(rows, 0..192, &mut packed[144..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes {
        // Within each half of the columns: two times 32 values in the low halves of 64 bytes, two times in the high halves.
        let (half, quarter) = (block / 4, block % 4);
        let (low_right, high_right) = ((quarter / 2 * 4) as u32, (quarter * 2) as u32);
        let low = simd.load_codes(part(packed, 144 + (half * 16 + quarter % 2 * VECTORS + i) * CODES));
        let high = simd.load_codes(part(packed, 144 + (32 + half * VECTORS + i) * CODES));
        let high = simd.shift_and_mask(simd.shift_right_and_mask(high, high_right, 3), 4, 0x30);
        simd.or(simd.shift_right_and_mask(low, low_right, 0x0f), high)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2] {
        let scale = simd.load_f16(part(packed, 0));
        let of_half = 2 * block * LANES;
        [
            simd.mul(scale, simd.widen_bytes(part(packed, 16 + of_half))),
            simd.mul(scale, simd.widen_bytes(part(packed, 16 + of_half + LANES))),
        ]
    }
}
