//! Vector operations with NEON, which every 64-bit ARM machine has, and with its dot products of bytes where there are such:
//! of signed ones (FEAT_DotProd) on all of Apple's and most servers' and phones' processors since about 2018, and of unsigned
//! with signed ones (FEAT_I8MM) since about 2021.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::mem::transmute;

use super::{CODES, LANES, Simd, Task};

/// Proof that the machine has NEON, with `DOT` also dot products of signed bytes, and with `MIXED` those of unsigned with
/// signed bytes. Only `detect` makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon<const DOT: bool, const MIXED: bool>(());

/// How a set of instructions is detected, and functions are compiled for it.
macro_rules! instructions {
    (<$dot:literal, $mixed:literal>, $features:literal, $($feature:tt),+) => {
        impl Neon<$dot, $mixed> {
            /// The proof, if the machine has the instructions.
            #[inline]
            pub(crate) fn detect() -> Option<Self> {
                ($(is_aarch64_feature_detected!($feature))&&+).then_some(Neon(()))
            }

            /// Runs a task in a function that is compiled with these instructions.
            #[inline]
            pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
                #[target_feature(enable = $features)]
                fn compiled<T: Task>(simd: Neon<$dot, $mixed>, task: T) -> T::Output {
                    task.run(simd)
                }
                // SAFETY: `self` proves that the machine has the instructions.
                unsafe { compiled(self, task) }
            }
        }
    };
}

instructions!(<false, false>, "neon", "neon");
instructions!(<true, false>, "neon,dotprod", "neon", "dotprod");
instructions!(<true, true>, "neon,dotprod,i8mm", "neon", "dotprod", "i8mm");

/// Evaluates an expression of vector instructions.
macro_rules! vector {
    ($expression:expr) => {
        // SAFETY: all methods have `self`, which proves that the machine has the instructions. Loads and stores go through
        // references to arrays of exactly the size that they access, and make no demand on alignment. Casts are between
        // types of the same size for which every bit pattern is valid.
        unsafe { $expression }
    };
}

/// Eight floats as two vectors of four: the results of an instruction for the first and second halves of its operands.
macro_rules! floats {
    ($instruction:ident($($operand:expr),*)) => {
        vector!(float32x4x2_t($instruction($($operand.0),*), $instruction($($operand.1),*)))
    };
}

/// The same for 32 bytes.
macro_rules! codes {
    ($instruction:ident($($operand:expr),*)) => {
        vector!(uint8x16x2_t($instruction($($operand.0),*), $instruction($($operand.1),*)))
    };
}

/// Adds to the lanes of a sum the products of four bytes each, by one of the instructions that stable Rust has no functions for.
macro_rules! add_products {
    ($instruction:literal, $sum:ident, $a:ident, $b:ident) => {
        // SAFETY: the caller's type proves that the machine has the instruction, which reads and writes nothing but registers.
        unsafe {
            asm!(
                concat!($instruction, " {sum:v}.4s, {a:v}.16b, {b:v}.16b"),
                sum = inout(vreg) $sum,
                a = in(vreg) $a,
                b = in(vreg) $b,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    };
}

impl<const DOT: bool, const MIXED: bool> Neon<DOT, MIXED> {
    /// Adds to lane `i` of `sum` the products of signed bytes `4 i` to `4 i + 3`, `b` being at least -127.
    #[inline(always)]
    fn add_signed(self, mut sum: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
        if DOT {
            add_products!("sdot", sum, a, b);
            sum
        } else {
            vector!({
                let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
                // Pairs of products stay within 2 * 128 * 127, which 16 bits hold.
                let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
                let high = vmull_high_s8(a, b);
                vpadalq_s16(sum, vpaddq_s16(low, high))
            })
        }
    }

    /// The same with `a` unsigned.
    #[inline(always)]
    fn add_unsigned(self, mut sum: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
        if MIXED {
            add_products!("usdot", sum, a, b);
            sum
        } else {
            // As signed bytes, those from 128 on are 256 too small; so much is added for their top bits.
            let missing = self.add_signed(vector!(vdupq_n_s32(0)), vector!(vshrq_n_u8::<7>(a)), b);
            self.add_signed(vector!(vmlaq_n_s32(sum, missing, 256)), a, b)
        }
    }
}

impl<const DOT: bool, const MIXED: bool> Simd for Neon<DOT, MIXED> {
    // 32 registers, but eight floats take two.
    const MANY_REGISTERS: bool = false;

    type Floats = float32x4x2_t;
    type Integers = int32x4x2_t;
    type Codes = uint8x16x2_t;

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4x2_t {
        vector!(float32x4x2_t(vdupq_n_f32(value), vdupq_n_f32(value)))
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> float32x4x2_t {
        vector!(float32x4x2_t(vld1q_f32(values.as_ptr()), vld1q_f32(values[4..].as_ptr())))
    }

    #[inline(always)]
    fn store(self, values: float32x4x2_t, to: &mut [f32; LANES]) {
        vector!({
            vst1q_f32(to.as_mut_ptr(), values.0);
            vst1q_f32(to[4..].as_mut_ptr(), values.1);
        })
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 32]) -> float32x4x2_t {
        let codes = self.load_codes(bytes);
        floats!(vreinterpretq_f32_u8(codes))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 16]) -> float32x4x2_t {
        self.widen_halves(vector!(transmute::<[u8; 16], [u16; LANES]>(*bytes)))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 16]) -> float32x4x2_t {
        vector!({
            let (zeros, halves) = (vdupq_n_u16(0), vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr())));
            let (low, high) = (vzip1q_u16(zeros, halves), vzip2q_u16(zeros, halves));
            float32x4x2_t(vreinterpretq_f32_u16(low), vreinterpretq_f32_u16(high))
        })
    }

    #[inline(always)]
    fn widen_halves(self, halves: [u16; LANES]) -> float32x4x2_t {
        let halves = vector!(vld1q_u16(halves.as_ptr()));
        let (low, high): (float32x4_t, float32x4_t);
        // Functions for these instructions are newer than the oldest Rust that this is to compile with.
        // SAFETY: NEON has the instructions, which read and write nothing but registers.
        unsafe {
            asm!(
                "fcvtl {low:v}.4s, {halves:v}.4h",
                "fcvtl2 {high:v}.4s, {halves:v}.8h",
                halves = in(vreg) halves,
                low = out(vreg) low,
                high = lateout(vreg) high,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        float32x4x2_t(low, high)
    }

    #[inline(always)]
    fn narrow_to_halves(self, values: float32x4x2_t) -> [u16; LANES] {
        let halves: uint16x8_t;
        // SAFETY: as above.
        unsafe {
            asm!(
                "fcvtn {halves:v}.4h, {low:v}.4s",
                "fcvtn2 {halves:v}.8h, {high:v}.4s",
                halves = out(vreg) halves,
                low = in(vreg) values.0,
                high = in(vreg) values.1,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        vector!(transmute::<uint16x8_t, [u16; LANES]>(halves))
    }

    #[inline(always)]
    fn widen_bytes(self, bytes: &[u8; LANES]) -> float32x4x2_t {
        vector!({
            let words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(bytes.as_ptr())));
            let (low, high) = (vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words));
            float32x4x2_t(vcvtq_f32_s32(low), vcvtq_f32_s32(high))
        })
    }

    #[inline(always)]
    fn add(self, a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t {
        floats!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t {
        floats!(vsubq_f32(a, b))
    }

    #[inline(always)]
    fn mul(self, a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t {
        floats!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t {
        floats!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn fused(self, a: float32x4x2_t, b: float32x4x2_t, c: float32x4x2_t) -> float32x4x2_t {
        floats!(vfmaq_f32(c, a, b))
    }

    // The instructions for maximum and minimum treat zeros and what is not a number in another way.
    #[inline(always)]
    fn max(self, a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t {
        let greater = vector!(uint32x4x2_t(vcgtq_f32(a.0, b.0), vcgtq_f32(a.1, b.1)));
        floats!(vbslq_f32(greater, a, b))
    }

    #[inline(always)]
    fn min(self, a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t {
        let less = vector!(uint32x4x2_t(vcltq_f32(a.0, b.0), vcltq_f32(a.1, b.1)));
        floats!(vbslq_f32(less, a, b))
    }

    #[inline(always)]
    fn abs(self, a: float32x4x2_t) -> float32x4x2_t {
        floats!(vabsq_f32(a))
    }

    #[inline(always)]
    fn round(self, a: float32x4x2_t) -> float32x4x2_t {
        floats!(vrndnq_f32(a))
    }

    #[inline(always)]
    fn power_of_two(self, exponents: float32x4x2_t) -> float32x4x2_t {
        let power = |exponents| {
            vector!({
                let biased = vaddq_s32(vcvtq_s32_f32(exponents), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
            })
        };
        float32x4x2_t(power(exponents.0), power(exponents.1))
    }

    #[inline(always)]
    fn keep_from(self, values: float32x4x2_t, x: float32x4x2_t, bound: float32x4x2_t) -> float32x4x2_t {
        let kept = vector!(uint32x4x2_t(vcgeq_f32(x.0, bound.0), vcgeq_f32(x.1, bound.1)));
        floats!(vbslq_f32(kept, values, self.splat(0.0)))
    }

    #[inline(always)]
    fn sum(self, values: float32x4x2_t) -> f32 {
        vector!({
            let four = vaddq_f32(values.0, values.1);
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        })
    }

    #[inline(always)]
    fn sums(self, values: [float32x4x2_t; LANES]) -> float32x4x2_t {
        // Of two vectors, with their halves added up, lanes 0 and 2, then 1 and 3.
        let two = |a: float32x4x2_t, b: float32x4x2_t| {
            vector!({
                let (a, b) = (vaddq_f32(a.0, a.1), vaddq_f32(b.0, b.1));
                let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
                vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)))
            })
        };
        let [a, b, c, d, e, f, g, h] = values;
        vector!(float32x4x2_t(vpaddq_f32(two(a, b), two(c, d)), vpaddq_f32(two(e, f), two(g, h))))
    }

    #[inline(always)]
    fn largest(self, values: float32x4x2_t) -> f32 {
        vector!(vmaxnmvq_f32(vmaxnmq_f32(values.0, values.1)))
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], distance: usize) {
        for line in bytes.chunks(64) {
            // There is no function for this instruction in stable Rust.
            // SAFETY: A prefetch has no effect but on caches, whatever the address.
            unsafe {
                asm!(
                    "prfm pldl1keep, [{address}]",
                    address = in(reg) line.as_ptr().wrapping_add(distance),
                    options(readonly, nostack, preserves_flags),
                );
            }
        }
    }

    #[inline(always)]
    fn load_codes(self, bytes: &[u8; CODES]) -> uint8x16x2_t {
        vector!(uint8x16x2_t(vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes[16..].as_ptr())))
    }

    #[inline(always)]
    fn store_codes(self, codes: uint8x16x2_t, to: &mut [u8; CODES]) {
        vector!({
            vst1q_u8(to.as_mut_ptr(), codes.0);
            vst1q_u8(to[16..].as_mut_ptr(), codes.1);
        })
    }

    #[inline(always)]
    fn shift_and_mask(self, codes: uint8x16x2_t, left: i32, mask: u8) -> uint8x16x2_t {
        let (left, mask) = vector!((vdupq_n_s8(left as i8), vdupq_n_u8(mask)));
        vector!(uint8x16x2_t(vandq_u8(vshlq_u8(codes.0, left), mask), vandq_u8(vshlq_u8(codes.1, left), mask)))
    }

    #[inline(always)]
    fn shift_right_and_mask(self, codes: uint8x16x2_t, right: u32, mask: u8) -> uint8x16x2_t {
        self.shift_and_mask(codes, -right.cast_signed(), mask)
    }

    #[inline(always)]
    fn splat_codes(self, four: &[u8; 4]) -> uint8x16x2_t {
        let vector = vector!(vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(*four))));
        uint8x16x2_t(vector, vector)
    }

    #[inline(always)]
    fn or(self, a: uint8x16x2_t, b: uint8x16x2_t) -> uint8x16x2_t {
        codes!(vorrq_u8(a, b))
    }

    #[inline(always)]
    fn look_up(self, codes: uint8x16x2_t, table: &[i8; 16]) -> uint8x16x2_t {
        vector!({
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            uint8x16x2_t(vqtbl1q_u8(table, codes.0), vqtbl1q_u8(table, codes.1))
        })
    }

    #[inline(always)]
    fn quantize(self, values: [float32x4x2_t; 4], factor: float32x4x2_t) -> uint8x16x2_t {
        // Eight values as 16-bit integers.
        let words = |values: float32x4x2_t| {
            vector!({
                let low = vcvtnq_s32_f32(vmulq_f32(values.0, factor.0));
                let high = vcvtnq_s32_f32(vmulq_f32(values.1, factor.1));
                vqmovn_high_s32(vqmovn_s32(low), high)
            })
        };
        let [a, b, c, d] = values;
        vector!({
            let low = vqmovn_high_s16(vqmovn_s16(words(a)), words(b));
            let high = vqmovn_high_s16(vqmovn_s16(words(c)), words(d));
            uint8x16x2_t(vreinterpretq_u8_s8(low), vreinterpretq_u8_s8(high))
        })
    }

    #[inline(always)]
    fn dot_unsigned(self, a: uint8x16x2_t, b: uint8x16x2_t) -> int32x4x2_t {
        self.accumulate::<false>(self.splat_shifted(0, 0), a, b)
    }

    #[inline(always)]
    fn splat_shifted(self, value: i32, left: u32) -> int32x4x2_t {
        let vector = vector!(vdupq_n_s32(value << left));
        int32x4x2_t(vector, vector)
    }

    #[inline(always)]
    fn accumulate<const WIDE: bool>(self, sum: int32x4x2_t, a: uint8x16x2_t, b: uint8x16x2_t) -> int32x4x2_t {
        if WIDE {
            int32x4x2_t(self.add_unsigned(sum.0, a.0, b.0), self.add_unsigned(sum.1, a.1, b.1))
        } else {
            // Up to 127, a byte is the same with and without sign.
            int32x4x2_t(self.add_signed(sum.0, a.0, b.0), self.add_signed(sum.1, a.1, b.1))
        }
    }

    #[inline(always)]
    fn to_floats(self, integers: int32x4x2_t) -> float32x4x2_t {
        floats!(vcvtq_f32_s32(integers))
    }
}
