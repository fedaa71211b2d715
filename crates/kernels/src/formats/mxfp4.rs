//! MXFP4: 32 four-bit floats (1 sign, 2 exponent, 1 mantissa bit) under one power of two, from the OCP Microscaling
//! Formats specification. Bytes: exponent (1, biased by 127), codes (16).

use super::{Format, Quantized, Sink, part, split_nibble};
use crate::simd::{LANES, Simd};

pub(crate) struct Mxfp4;

/// What the codes stand for, doubled so that all are whole numbers. Code 8, "minus zero", is plain zero.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of two to the power `exponent - 127`: half, because [`DOUBLED`] is doubled.
#[inline(always)]
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

impl Quantized for Mxfp4 {
    const SIGNED: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8], sink: &mut impl Sink<S>) {
        let (blocks, _) = bytes.as_chunks::<17>();
        let mut scales = [0.0; LANES];
        for (scale, block) in scales.iter_mut().zip(blocks) {
            *scale = half_power(block[0]);
        }
        for (i, (block, scale)) in blocks.iter().zip(scales).enumerate() {
            sink.block(i, simd.look_up(simd.split_nibbles(part(block, 1)), &DOUBLED), simd.splat(scale));
        }
    }
}
