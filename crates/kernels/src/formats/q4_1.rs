//! Q4_1: 32 values of 4 bits above a minimum. Bytes: scale (2), minimum (2), codes (16).

use super::{Format, half_at, split_nibble};

pub(crate) struct Q4_1;

impl Format for Q4_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 20;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(split_nibble(&block[4..], i)) + minimum;
        }
    }
}
