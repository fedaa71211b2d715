//! Q4_0: 32 values of 4 bits around 8, one half-precision scale. Bytes: scale (2), codes (16).

use super::{Format, Quantized, Sink, gather_halves, half_at, part, split_nibble};
use crate::simd::Simd;

pub(crate) struct Q4_0;

impl Format for Q4_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 18;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * (f32::from(split_nibble(&block[2..], i)) - 8.0);
        }
    }
}

impl Quantized for Q4_0 {
    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8], sink: &mut impl Sink<S>) {
        let (blocks, _) = bytes.as_chunks::<18>();
        let scales = simd.widen_halves(gather_halves(blocks, 0));
        for (i, block) in blocks.iter().enumerate() {
            sink.block(i, simd.split_nibbles(part(block, 2)), simd.spread(scales, i));
        }
        sink.offsets(simd.mul(scales, simd.splat(-8.0)));
    }
}
