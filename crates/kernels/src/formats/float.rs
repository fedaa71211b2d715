//! Plain floating-point formats: every "block" is one value.

use super::{Float, Format, part};
use crate::simd::Simd;

/// 32-bit IEEE floats, little-endian.
pub(crate) struct F32;

impl Format for F32 {
    const VALUES: usize = 1;
    const BYTES: usize = 4;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    }
}

impl Float for F32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::Floats {
        simd.load_f32(part(bytes, 0))
    }
}

/// 16-bit IEEE floats, little-endian.
pub(crate) struct F16;

impl Format for F16 {
    const VALUES: usize = 1;
    const BYTES: usize = 2;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        out[0] = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
    }
}

impl Float for F16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::Floats {
        simd.load_f16(part(bytes, 0))
    }
}

/// The upper halves of 32-bit floats, little-endian.
pub(crate) struct Bf16;

impl Format for Bf16 {
    const VALUES: usize = 1;
    const BYTES: usize = 2;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16);
    }
}

impl Float for Bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::Floats {
        simd.load_bf16(part(bytes, 0))
    }
}
