//! MXFP4: 32 four-bit floats (1 sign, 2 exponent, 1 mantissa bit) under one power of two, from the OCP Microscaling
//! Formats specification. Bytes: exponent (1, biased by 127), codes (16).

use super::{Format, Quantized, nibbles, pack_words, part, split_nibble};
use crate::simd::{LANES, Simd};

pub(crate) struct Mxfp4;

/// What the codes stand for, doubled so that all are whole numbers. Code 8, "minus zero", is plain zero.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The same plus 16, so that none is negative.
const RAISED: [i8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

/// Half of two to the power `exponent - 127`: half, because [`DOUBLED`] is doubled.
fn half_power(exponent: u8) -> f32 {
    // Below the smallest normal float, powers of two are single mantissa bits.
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent.wrapping_sub(1)) << 23 })
}

impl Format for Mxfp4 {
    const VALUES: usize = 32;
    const BYTES: usize = 17;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_power(block[0]);
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(DOUBLED[usize::from(split_nibble(&block[1..], i))]);
        }
    }
}

impl Quantized for Mxfp4 {
    const ZERO_SHIFT: Option<u32> = Some(4);
    const PACKED_BYTES: usize = 144;

    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]) {
        for (row, scale) in rows.iter().zip(packed.as_chunks_mut::<2>().0) {
            // The upper half of a power of two has all of it.
            *scale = ((half_power(row[0]).to_bits() >> 16) as u16).to_le_bytes();
        }
        pack_words(rows, 1..17, &mut packed[16..]);
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, packed: &[u8], _: usize, i: usize) -> S::Codes {
        simd.look_up(nibbles(simd, packed, 16, i), &RAISED)
    }

    #[inline(always)]
    fn scales<S: Simd>(simd: S, packed: &[u8], _: usize) -> [S::Floats; 2] {
        [simd.load_bf16(part(packed, 0)); 2]
    }
}
