//! The definition of each vector operation, in plain code: for machines without anything better, and as the reference.

use std::array::from_fn;

use half::f16;

use super::{CODES, LANES, Simd};

/// Plain code that every machine runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

type Floats = [f32; LANES];
type Codes = [u8; CODES];

#[inline(always)]
fn zip(a: Floats, b: Floats, f: impl Fn(f32, f32) -> f32) -> Floats {
    from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    const MANY_REGISTERS: bool = false;
    type Floats = Floats;
    type Integers = [i32; LANES];
    type Codes = Codes;

    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Floats {
        *values
    }

    #[inline(always)]
    fn store(self, values: Floats, to: &mut [f32; LANES]) {
        *to = values;
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 32]) -> Floats {
        from_fn(|i| f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 16]) -> Floats {
        from_fn(|i| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 16]) -> Floats {
        from_fn(|i| f32::from_le_bytes([0, 0, bytes[2 * i], bytes[2 * i + 1]]))
    }

    #[inline(always)]
    fn widen_halves(self, halves: [u16; LANES]) -> Floats {
        halves.map(|half| f16::from_bits(half).to_f32())
    }

    #[inline(always)]
    fn narrow_to_halves(self, values: Floats) -> [u16; LANES] {
        values.map(|value| f16::from_f32(value).to_bits())
    }

    #[inline(always)]
    fn widen_bytes(self, bytes: &[u8; LANES]) -> Floats {
        bytes.map(|byte| f32::from(byte.cast_signed()))
    }

    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fused(self, a: Floats, b: Floats, c: Floats) -> Floats {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Floats) -> Floats {
        a.map(f32::abs)
    }

    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        a.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn power_of_two(self, exponents: Floats) -> Floats {
        exponents.map(|exponent| f32::from_bits(((exponent as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn keep_from(self, values: Floats, x: Floats, bound: Floats) -> Floats {
        from_fn(|i| if x[i] >= bound[i] { values[i] } else { 0.0 })
    }

    #[inline(always)]
    fn sums(self, values: [Floats; LANES]) -> Floats {
        values.map(|values| self.sum(values))
    }

    #[inline(always)]
    fn sum(self, v: Floats) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    fn largest(self, values: Floats) -> f32 {
        values.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn prefetch(self, _bytes: &[u8], _distance: usize) {}

    #[inline(always)]
    fn load_codes(self, bytes: &[u8; CODES]) -> Codes {
        *bytes
    }

    #[inline(always)]
    fn store_codes(self, codes: Codes, to: &mut [u8; CODES]) {
        *to = codes;
    }

    #[inline(always)]
    fn shift_and_mask(self, codes: Codes, left: i32, mask: u8) -> Codes {
        codes.map(|code| (if left >= 0 { code << left } else { code >> -left }) & mask)
    }

    #[inline(always)]
    fn shift_right_and_mask(self, codes: Codes, right: u32, mask: u8) -> Codes {
        codes.map(|code| (code >> right) & mask)
    }

    #[inline(always)]
    fn splat_codes(self, four: &[u8; 4]) -> Codes {
        from_fn(|i| four[i % 4])
    }

    #[inline(always)]
    fn or(self, a: Codes, b: Codes) -> Codes {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn look_up(self, codes: Codes, table: &[i8; 16]) -> Codes {
        codes.map(|code| table[usize::from(code & 0x0f)].cast_unsigned())
    }

    #[inline(always)]
    fn quantize(self, values: [Floats; 4], factor: Floats) -> Codes {
        from_fn(|i| {
            let value = values[i / LANES][i % LANES] * factor[i % LANES];
            (value.round_ties_even() as i8).cast_unsigned()
        })
    }

    #[inline(always)]
    fn dot_unsigned(self, a: Codes, b: Codes) -> [i32; LANES] {
        from_fn(|i| (4 * i..4 * i + 4).map(|j| i32::from(a[j]) * i32::from(b[j].cast_signed())).sum())
    }

    #[inline(always)]
    fn splat_shifted(self, value: i32, left: u32) -> [i32; LANES] {
        [value << left; LANES]
    }

    #[inline(always)]
    fn accumulate<const WIDE: bool>(self, sum: [i32; LANES], a: Codes, b: Codes) -> [i32; LANES] {
        let products = self.dot_unsigned(a, b);
        from_fn(|i| sum[i] + products[i])
    }

    #[inline(always)]
    fn to_floats(self, integers: [i32; LANES]) -> Floats {
        integers.map(|integer| integer as f32)
    }
}
