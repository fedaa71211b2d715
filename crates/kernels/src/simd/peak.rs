//! Loops that do nothing but multiply and add, in registers: how fast the machine could compute if nothing else took time.
//! Unlike the kernels they take the widest vectors that there are.
#![allow(unsafe_code)]

use std::hint::black_box;

/// Sums that grow side by side: enough to keep the units busy, few enough for the registers.
const CHAINS: usize = 12;

/// Adds up products of bytes in 32-bit integers, `steps` times [`CHAINS`] vectors, by the fastest instruction for it.
/// Returns the number of multiplications and additions.
pub(crate) fn integer_products(steps: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            // SAFETY: the machine has the instructions.
            return unsafe { x86::integers_512(steps) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has the instructions.
            return unsafe { x86::integers_256(steps) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        // SAFETY: the machine has the instruction.
        return unsafe { arm::integers(steps) };
    }
    plain::integers(steps)
}

/// The same with 32-bit floats, by fused multiplication and addition.
pub(crate) fn float_products(steps: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has the instructions.
            return unsafe { x86::floats_512(steps) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the machine has the instructions.
            return unsafe { x86::floats_256(steps) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    return arm::floats(steps);
    #[cfg(not(target_arch = "aarch64"))]
    plain::floats(steps)
}

/// Makes `steps` steps of [`CHAINS`] sums that start at `start`, each step being `next`, and returns the number of
/// operations if a vector's step has `operations`.
#[inline(always)]
fn chains<T: Copy>(steps: u64, start: T, operations: u64, next: impl Fn(T) -> T) -> u64 {
    let mut sums = [start; CHAINS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = next(*sum);
        }
    }
    // The sums count as used, or nothing would be computed.
    black_box(&sums);
    steps * CHAINS as u64 * operations
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::chains;

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn integers_512(steps: u64) -> u64 {
        let (start, factor) = (_mm512_set1_epi32(black_box(1)), _mm512_set1_epi32(black_box(0x0101)));
        chains(steps, start, 2 * 64, |sum| _mm512_dpbusd_epi32(sum, factor, factor))
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn integers_256(steps: u64) -> u64 {
        let (start, factor) = (_mm256_set1_epi32(black_box(1)), _mm256_set1_epi32(black_box(0x0101)));
        let ones = _mm256_set1_epi16(1);
        // The sum is a factor too, lest the products are computed once for all steps.
        chains(steps, start, 2 * 32, |sum| {
            _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(sum, factor), ones))
        })
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn floats_512(steps: u64) -> u64 {
        let (start, factor) = (_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(black_box(0.5)));
        chains(steps, start, 2 * 16, |sum| _mm512_fmadd_ps(sum, factor, factor))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn floats_256(steps: u64) -> u64 {
        let (start, factor) = (_mm256_set1_ps(black_box(1.0)), _mm256_set1_ps(black_box(0.5)));
        chains(steps, start, 2 * 8, |sum| _mm256_fmadd_ps(sum, factor, factor))
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::arch::asm;
    use std::hint::black_box;

    use super::chains;

    #[target_feature(enable = "dotprod")]
    pub(super) fn integers(steps: u64) -> u64 {
        let (start, factor) = (vdupq_n_s32(black_box(1)), vdupq_n_s8(black_box(1)));
        chains(steps, start, 2 * 16, |sum| {
            let mut sum = sum;
            // SAFETY: this function has the instruction, which changes nothing but its first operand.
            unsafe {
                asm!("sdot {0:v}.4s, {1:v}.16b, {1:v}.16b", inout(vreg) sum, in(vreg) factor,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sum
        })
    }

    pub(super) fn floats(steps: u64) -> u64 {
        // SAFETY: all machines of this architecture have these instructions.
        unsafe {
            let (start, factor) = (vdupq_n_f32(black_box(1.0)), vdupq_n_f32(black_box(0.5)));
            chains(steps, start, 2 * 4, |sum| vfmaq_f32(factor, sum, factor))
        }
    }
}

mod plain {
    use std::hint::black_box;

    use super::chains;

    pub(super) fn integers(steps: u64) -> u64 {
        let factor = black_box(3_i32);
        chains(steps, black_box([1_i32; 8]), 2 * 8, |sum| sum.map(|sum| sum.wrapping_mul(factor).wrapping_add(factor)))
    }

    #[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "all machines have better"))]
    pub(super) fn floats(steps: u64) -> u64 {
        let factor = black_box(0.5_f32);
        chains(steps, black_box([1.0_f32; 8]), 2 * 8, |sum| sum.map(|sum| sum * factor + factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_for_every_step() {
        for products in [integer_products, float_products, plain::integers, plain::floats] {
            let one = products(1);
            assert!(one >= 2 * 4 * CHAINS as u64 && products(7) == 7 * one);
        }
    }
}
