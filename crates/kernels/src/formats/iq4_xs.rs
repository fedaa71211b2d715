//! IQ4_XS: 256 values on the levels of IQ4_NL in 8 groups of 32, each with a 6-bit scale around 32.
//!
//! Bytes: scale of the scales (2), top two bits of the scales (2; group `i` in bits `2 i`), low four bits of the scales
//! (4; groups `2 n` and `2 n + 1` in the halves of byte `n`), codes (128; 16 bytes a group, as in IQ4_NL).

use super::iq4_nl::{LEVELS, RAISED_LEVELS};
use super::{Format, Quantized, VECTORS, half_at, nibbles, pack_bytes, pack_halves, pack_words, part, split_nibble};
use crate::simd::{CODES, LANES, Simd};

pub(crate) struct Iq4Xs;

impl Iq4Xs {
    /// The eight group scales, 32 too large, one in each byte.
    fn scales(block: &[u8]) -> [u8; 8] {
        // Spread the four bytes to every other of eight, then move the high halves to the bytes between.
        let low = u64::from(u32::from_le_bytes(*part(block, 4)));
        let low = (low | (low << 16)) & 0x0000_ffff_0000_ffff;
        let low = (low | (low << 8)) & 0x00ff_00ff_00ff_00ff;
        let low = (low | (low << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
        // Spread eight pairs of bits to eight bytes.
        let high = u64::from(u16::from_le_bytes(*part(block, 2)));
        let high = (high | (high << 24)) & 0x0000_00ff_0000_00ff;
        let high = (high | (high << 12)) & 0x000f_000f_000f_000f;
        let high = (high | (high << 6)) & 0x0303_0303_0303_0303;
        (low | (high << 4)).to_le_bytes()
    }
}

impl Format for Iq4Xs {
    const VALUES: usize = 256;
    const BYTES: usize = 136;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        let scales = Iq4Xs::scales(block);
        for (i, value) in out.iter_mut().enumerate() {
            let code = split_nibble(&block[8 + i / 32 * 16..], i % 32);
            *value = scale * (f32::from(scales[i / 32]) - 32.0) * f32::from(LEVELS[usize::from(code)]);
        }
    }
}

impl Quantized for Iq4Xs {
    const ZERO_SHIFT: Option<u32> = Some(7);
    const WIDE: bool = true;
    const PACKED_BYTES: usize = 1104;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        pack_halves(rows, 0, &mut packed[..16]);
        pack_bytes(rows, |row| Iq4Xs::scales(row).map(|scale| scale.wrapping_sub(32)), &mut packed[16..80]);
        pack_words(rows, 8..136, &mut packed[80..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes {
        simd.look_up(nibbles(simd, packed, 80 + block * VECTORS / 2 * CODES, i), &RAISED_LEVELS)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2] {
        let scales = simd.widen_bytes(part(packed, 16 + block * LANES));
        [simd.mul(simd.load_f16(part(packed, 0)), scales); 2]
    }
}
