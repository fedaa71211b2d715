//! Q8_0: 32 signed 8-bit values, one half-precision scale. Bytes: scale (2), codes (32).

use super::{Format, half_at};

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
