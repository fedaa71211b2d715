//! Vector operations with AVX2, FMA and F16C, which every x86-64 machine since about 2013 (Intel) or 2015 (AMD) has, and with
//! the dot products and registers of AVX-512 where there are such.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{CODES, LANES, Simd, Task};

/// Proof that the machine has AVX2, FMA and F16C, and with `VNNI` also the parts of AVX-512 that [`X86::run`] names. Only
/// `detect` makes one. Vectors have 256 bits in either case, for then both compute the same bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct X86<const VNNI: bool>(());

impl X86<false> {
    /// The proof, if the machine has the instructions.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        (present && is_x86_feature_detected!("f16c")).then_some(X86(()))
    }

    /// Runs a task in a function that is compiled with these instructions.
    #[inline]
    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<T: Task>(simd: X86<false>, task: T) -> T::Output {
            task.run(simd)
        }
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { compiled(self, task) }
    }
}

impl X86<true> {
    /// The proof, if the machine has the instructions.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let present = present && is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni");
        (present && X86::<false>::detect().is_some()).then_some(X86(()))
    }

    /// Runs a task in a function that is compiled with these instructions.
    #[inline]
    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn compiled<T: Task>(simd: X86<true>, task: T) -> T::Output {
            task.run(simd)
        }
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { compiled(self, task) }
    }
}

/// Evaluates an expression of vector instructions.
macro_rules! vector {
    ($expression:expr) => {
        // SAFETY: all methods have `self`, which proves that the machine has the instructions. Loads and stores go through
        // references to arrays of exactly the size that they access, and make no demand on alignment. Casts are between
        // types of the same size for which every bit pattern is valid.
        unsafe { $expression }
    };
}

impl<const VNNI: bool> Simd for X86<VNNI> {
    const MANY_REGISTERS: bool = VNNI;

    type Floats = __m256;
    type Integers = __m256i;
    type Codes = __m256i;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        vector!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> __m256 {
        vector!(_mm256_loadu_ps(values.as_ptr()))
    }

    #[inline(always)]
    fn store(self, values: __m256, to: &mut [f32; LANES]) {
        vector!(_mm256_storeu_ps(to.as_mut_ptr(), values))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 32]) -> __m256 {
        vector!(_mm256_loadu_ps(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 16]) -> __m256 {
        vector!(_mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 16]) -> __m256 {
        vector!({
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        })
    }

    #[inline(always)]
    fn widen_halves(self, halves: [u16; LANES]) -> __m256 {
        vector!(_mm256_cvtph_ps(transmute::<[u16; LANES], __m128i>(halves)))
    }

    #[inline(always)]
    fn narrow_to_halves(self, values: __m256) -> [u16; LANES] {
        vector!(transmute::<__m128i, [u16; LANES]>(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values)))
    }

    #[inline(always)]
    fn widen_bytes(self, bytes: &[u8; LANES]) -> __m256 {
        vector!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*bytes)))))
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fused(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        vector!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        vector!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        vector!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }

    #[inline(always)]
    fn power_of_two(self, exponents: __m256) -> __m256 {
        vector!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponents), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }

    #[inline(always)]
    fn keep_from(self, values: __m256, x: __m256, bound: __m256) -> __m256 {
        vector!(_mm256_and_ps(values, _mm256_cmp_ps::<_CMP_GE_OQ>(x, bound)))
    }

    #[inline(always)]
    fn sums(self, values: [__m256; LANES]) -> __m256 {
        vector!({
            let [a, b, c, d, e, f, g, h] = values;
            // The two halves of a vector added up, of a on the left and of e on the right, and so on.
            let ae = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, e), _mm256_permute2f128_ps::<0x31>(a, e));
            let bf = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(b, f), _mm256_permute2f128_ps::<0x31>(b, f));
            let cg = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, g), _mm256_permute2f128_ps::<0x31>(c, g));
            let dh = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(d, h), _mm256_permute2f128_ps::<0x31>(d, h));
            // Lanes 0 and 2, then 1 and 3, of two of these side by side.
            let abef = _mm256_add_ps(_mm256_unpacklo_ps(ae, bf), _mm256_unpackhi_ps(ae, bf));
            let cdgh = _mm256_add_ps(_mm256_unpacklo_ps(cg, dh), _mm256_unpackhi_ps(cg, dh));
            let (even, odd) = (_mm256_shuffle_ps::<0x44>(abef, cdgh), _mm256_shuffle_ps::<0xee>(abef, cdgh));
            _mm256_add_ps(even, odd)
        })
    }

    #[inline(always)]
    fn sum(self, values: __m256) -> f32 {
        vector!({
            let four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn largest(self, values: __m256) -> f32 {
        vector!({
            let four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], distance: usize) {
        for line in bytes.chunks(64) {
            // A prefetch has no effect but on caches, whatever the address.
            vector!(_mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(distance).cast()));
        }
    }

    #[inline(always)]
    fn load_codes(self, bytes: &[u8; CODES]) -> __m256i {
        vector!(_mm256_loadu_si256(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn store_codes(self, codes: __m256i, to: &mut [u8; CODES]) {
        vector!(_mm256_storeu_si256(to.as_mut_ptr().cast(), codes))
    }

    #[inline(always)]
    fn shift_and_mask(self, codes: __m256i, left: i32, mask: u8) -> __m256i {
        vector!({
            let shifted = match left {
                0 => codes,
                1.. => _mm256_sll_epi16(codes, _mm_cvtsi32_si128(left)),
                _ => _mm256_srl_epi16(codes, _mm_cvtsi32_si128(-left)),
            };
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask.cast_signed()))
        })
    }

    #[inline(always)]
    fn shift_right_and_mask(self, codes: __m256i, right: u32, mask: u8) -> __m256i {
        vector!({
            let shifted = _mm256_srl_epi16(codes, _mm_cvtsi32_si128(right.cast_signed()));
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask.cast_signed()))
        })
    }

    #[inline(always)]
    fn splat_codes(self, four: &[u8; 4]) -> __m256i {
        vector!(_mm256_set1_epi32(i32::from_le_bytes(*four)))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        vector!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn look_up(self, codes: __m256i, table: &[i8; 16]) -> __m256i {
        vector!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, codes)
        })
    }

    #[inline(always)]
    fn quantize(self, values: [__m256; 4], factor: __m256) -> __m256i {
        vector!({
            let [a, b, c, d] = values;
            let (a, b) = (_mm256_cvtps_epi32(_mm256_mul_ps(a, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(b, factor)));
            let (c, d) = (_mm256_cvtps_epi32(_mm256_mul_ps(c, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(d, factor)));
            // Packing works within each half, which leaves groups of four bytes in the order 0 2 4 6 1 3 5 7.
            let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        })
    }

    #[inline(always)]
    fn dot_unsigned(self, a: __m256i, b: __m256i) -> __m256i {
        if VNNI {
            vector!(_mm256_dpbusd_epi32(_mm256_setzero_si256(), a, b))
        } else {
            // Pairs stay below 2 * 128 * 127, so the saturation of the first instruction never acts.
            vector!(_mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn splat_shifted(self, value: i32, left: u32) -> __m256i {
        vector!(_mm256_sll_epi32(_mm256_set1_epi32(value), _mm_cvtsi32_si128(left.cast_signed())))
    }

    #[inline(always)]
    fn accumulate<const WIDE: bool>(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        if VNNI {
            vector!(_mm256_dpbusd_epi32(sum, a, b))
        } else if WIDE {
            // The top bits on their own, or pairs would be too large for the first instruction.
            vector!({
                let low = self.dot_unsigned(_mm256_and_si256(a, _mm256_set1_epi8(0x7f)), b);
                let high = self.dot_unsigned(_mm256_and_si256(a, _mm256_set1_epi8(-128)), b);
                _mm256_add_epi32(sum, _mm256_add_epi32(low, high))
            })
        } else {
            vector!(_mm256_add_epi32(sum, self.dot_unsigned(a, b)))
        }
    }

    #[inline(always)]
    fn to_floats(self, integers: __m256i) -> __m256 {
        vector!(_mm256_cvtepi32_ps(integers))
    }
}
