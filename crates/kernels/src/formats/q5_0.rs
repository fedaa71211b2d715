//! Q5_0: 32 values of 5 bits around 16. Bytes: scale (2), fifth bits (4, value `i` in bit `i`), low four bits (16).

use super::{Format, Quantized, Sink, gather_halves, half_at, part, split_nibble};
use crate::simd::Simd;

pub(crate) struct Q5_0;

impl Format for Q5_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 22;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (i, value) in out.iter_mut().enumerate() {
            let high = (block[2 + i / 8] >> (i % 8)) & 1;
            *value = scale * (f32::from(split_nibble(&block[6..], i) | (high << 4)) - 16.0);
        }
    }
}

impl Quantized for Q5_0 {
    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8], sink: &mut impl Sink<S>) {
        let (blocks, _) = bytes.as_chunks::<22>();
        let scales = simd.widen_halves(gather_halves(blocks, 0));
        for (i, block) in blocks.iter().enumerate() {
            let high = simd.expand_bits(u32::from_le_bytes(*part(block, 2)), 16);
            sink.block(i, simd.or(simd.split_nibbles(part(block, 6)), high), simd.spread(scales, i));
        }
        sink.offsets(simd.mul(scales, simd.splat(-16.0)));
    }
}
