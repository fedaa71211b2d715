//! Q5_0: 32 values of 5 bits around 16. Bytes: scale (2), fifth bits (4, value `i` in bit `i`), low four bits (16).

use super::{Format, half_at, split_nibble};

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
