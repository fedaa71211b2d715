//! Q5_1: 32 values of 5 bits above a minimum. Bytes: scale (2), minimum (2), fifth bits (4), low four bits (16).

use super::{Format, half_at, split_nibble};

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
