//! Q8_0: 32 signed 8-bit values, one half-precision scale. Bytes: scale (2), codes (32).

use super::{Format, Quantized, Sink, gather_halves, half_at, part};
use crate::simd::Simd;

pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 0);
        for (value, code) in out.iter_mut().zip(&block[2..]) {
            *value = f32::from(code.cast_signed()) * scale;
        }
    }
}

impl Quantized for Q8_0 {
    const SIGNED: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8], sink: &mut impl Sink<S>) {
        let (blocks, _) = bytes.as_chunks::<34>();
        let scales = simd.widen_halves(gather_halves(blocks, 0));
        for (i, block) in blocks.iter().enumerate() {
            sink.block(i, simd.load_codes(part(block, 2)), simd.spread(scales, i));
        }
    }
}
