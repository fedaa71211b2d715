//! Q5_1: 32 values of 5 bits above a minimum. Bytes: scale (2), minimum (2), fifth bits (4), low four bits (16).

use super::{Format, Quantized, Sink, gather_halves, half_at, part, split_nibble};
use crate::simd::Simd;

pub(crate) struct Q5_1;

impl Format for Q5_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 24;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        for (i, value) in out.iter_mut().enumerate() {
            let high = (block[4 + i / 8] >> (i % 8)) & 1;
            *value = scale * f32::from(split_nibble(&block[8..], i) | (high << 4)) + minimum;
        }
    }
}

impl Quantized for Q5_1 {
    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8], sink: &mut impl Sink<S>) {
        let (blocks, _) = bytes.as_chunks::<24>();
        let scales = simd.widen_halves(gather_halves(blocks, 0));
        for (i, block) in blocks.iter().enumerate() {
            let high = simd.expand_bits(u32::from_le_bytes(*part(block, 4)), 16);
            sink.block(i, simd.or(simd.split_nibbles(part(block, 8)), high), simd.spread(scales, i));
        }
        sink.offsets(simd.widen_halves(gather_halves(blocks, 2)));
    }
}
