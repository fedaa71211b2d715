//! Q6_K: 256 values of 6 bits around 32 in 16 groups of 16, each with a signed 8-bit scale.
//!
//! Bytes: low four bits (128; of each 128 values, 64 in low halves, then 64 in high halves of 64 bytes), top two bits
//! (64, as the codes of Q2_K), scales (16), scale of the scales (2).

use super::{Format, half_at};

pub(crate) struct Q6K;

impl Format for Q6K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;

    fn dequantize(block: &[u8], out: &mut [f32]) {
        let scale = half_at(block, 208);
        for (i, value) in out.iter_mut().enumerate() {
            let low = (block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4)) & 0x0f;
            let high = (block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3;
            let group_scale = scale * f32::from(block[192 + i / 16].cast_signed());
            *value = group_scale * (f32::from(low | (high << 4)) - 32.0);
        }
    }
}
