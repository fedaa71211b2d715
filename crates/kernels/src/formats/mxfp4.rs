//! MXFP4: 32 four-bit floats (1 sign, 2 exponent, 1 mantissa bit) under one power of two, from the OCP Microscaling
//! Formats specification. Bytes: exponent (1, biased by 127), codes (16).

use super::{Factors, Format, Quantized, part, split_nibble, starts};
use crate::simd::Simd;

pub(crate) struct Mxfp4;

/// What the codes stand for, doubled so that all are whole numbers. Code 8, "minus zero", is plain zero.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The same plus 12, so that none is negative.
const RAISED: [i8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Half of two to the power `exponent - 127`: half, because [`DOUBLED`] is doubled.
#[inline(always)]
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
    #[inline(always)]
    fn factors<S: Simd>(simd: S, bytes: &[u8]) -> Factors<S> {
        let scales = simd.load(&starts::<17, 1, _>(bytes, |[exponent]| half_power(exponent)));
        Factors::Blocks { scales, offsets: simd.mul(scales, simd.splat(-12.0)) }
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, bytes: &[u8], block: usize) -> S::Codes {
        simd.look_up(simd.split_nibbles(part(bytes, 17 * block + 1)), &RAISED)
    }
}
