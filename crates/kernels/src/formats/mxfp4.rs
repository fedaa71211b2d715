//! MXFP4: 32 four-bit floats (1 sign, 2 exponent, 1 mantissa bit) under one power of two, from the OCP Microscaling
//! Formats specification. Bytes: exponent (1, biased by 127), codes (16).

use super::{Format, split_nibble};

pub(crate) struct Mxfp4;

/// What the codes stand for, doubled so that all are whole numbers. Code 8, "minus zero", is plain zero.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of two to the power `exponent - 127`: half, because [`DOUBLED`] is doubled.
fn half_power(exponent: u8) -> f32 {
    match exponent {
        // Below the smallest normal float, powers of two are single mantissa bits.
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
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
