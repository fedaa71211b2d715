//! Q4_0: 32 values of 4 bits around 8, one half-precision scale. Bytes: scale (2), codes (16).

use super::{Format, half_at, split_nibble};

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
