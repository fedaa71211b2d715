//! Q3_K: 256 values of 3 bits around 4 in 16 groups of 16, each with a 6-bit scale around 32.
//!
//! Bytes: third bits (32; value `i` in bit `i / 32` of byte `i % 32`), low two bits (64, as in Q2_K), scales (12), scale
//! of the scales (2).

use std::array::from_fn;

use super::{Format, Quantized, VECTORS, half_at, pack_bytes, pack_halves, pack_words, part};
use crate::simd::{CODES, LANES, Simd};

pub(crate) struct Q3K;

impl Q3K {
    /// The sixteen 6-bit scales, 32 too large: low four bits in the halves of bytes 0 to 7, top two bits in bytes 8 to 11.
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
    const ZERO_SHIFT: Option<u32> = Some(2);
    const HALVES: bool = true;
    const PACKED_BYTES: usize = 912;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 108, &mut packed[..16]);
        let scales = |row: &[u8]| {
            let scales = Q3K::scales(part(row, 96));
            from_fn::<u8, 16, _>(|i| scales[i / 8][i % 8].wrapping_sub(32))
        };
        pack_bytes(rows, scales, &mut packed[16..144]);
        pack_words(rows, 0..96, &mut packed[144..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes {
        let (low_right, high_right) = ((block % 4 * 2) as u32, block as u32);
        let third_bits = simd.load_codes(part(packed, 144 + i * CODES));
        let third_bit = simd.shift_and_mask(simd.shift_right_and_mask(third_bits, high_right, 1), 2, 4);
        let low = simd.load_codes(part(packed, 400 + (block / 4 * VECTORS + i) * CODES));
        simd.or(simd.shift_right_and_mask(low, low_right, 3), third_bit)
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
