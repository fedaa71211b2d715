//! Vectors of eight floats and of 32 bytes, for whatever instructions the machine has.
//!
//! A kernel is written once, generic over [`Simd`], and run through [`dispatch`], which picks the best implementation at
//! run time. All implementations compute the same bits: every operation is defined exactly, order of summation included,
//! and [`Portable`] is the definition in plain code that the others are tested against.
//!
//! Kernels must be `#[inline(always)]` down to the vector operations: only what is inlined into the function that enables
//! the instructions is compiled to them.

pub(crate) mod math;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
pub(crate) mod peak;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::LazyLock;

pub(crate) use portable::Portable;

/// Values in a vector of floats.
pub(crate) const LANES: usize = 8;
/// Values in a vector of codes.
pub(crate) const CODES: usize = 32;

/// Vector operations. A value of the type proves that the machine has the instructions.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Whether there are more than 16 registers, so that larger tiles fit in.
    const MANY_REGISTERS: bool;
    /// Eight 32-bit floats.
    type Floats: Copy;
    /// Eight 32-bit integers.
    type Integers: Copy;
    /// 32 bytes, signed or unsigned as the operation says.
    type Codes: Copy;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::Floats;
    fn load(self, values: &[f32; LANES]) -> Self::Floats;
    fn store(self, values: Self::Floats, to: &mut [f32; LANES]);
    /// Little-endian 32-bit floats.
    fn load_f32(self, bytes: &[u8; 32]) -> Self::Floats;
    /// Little-endian 16-bit floats.
    fn load_f16(self, bytes: &[u8; 16]) -> Self::Floats;
    /// Little-endian upper halves of 32-bit floats.
    fn load_bf16(self, bytes: &[u8; 16]) -> Self::Floats;
    /// The bits of 16-bit floats, widened.
    fn widen_halves(self, halves: [u16; LANES]) -> Self::Floats;
    /// Rounds to 16-bit floats, to nearest, ties to even.
    fn narrow_to_halves(self, values: Self::Floats) -> [u16; LANES];
    /// Signed bytes.
    fn widen_bytes(self, bytes: &[u8; LANES]) -> Self::Floats;

    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger of each pair, and `b` where one is not a number.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The smaller of each pair, and `b` where one is not a number.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn abs(self, a: Self::Floats) -> Self::Floats;
    /// Rounds to whole numbers, ties to even.
    fn round(self, a: Self::Floats) -> Self::Floats;
    /// Two to the power of whole numbers from -126 to 127.
    fn power_of_two(self, exponents: Self::Floats) -> Self::Floats;
    /// `values` where `x >= bound`, else zero.
    fn keep_from(self, values: Self::Floats, x: Self::Floats, bound: Self::Floats) -> Self::Floats;
    /// The sum of all lanes, in the order `((0+4)+(2+6))+((1+5)+(3+7))`.
    fn sum(self, values: Self::Floats) -> f32;
    /// Lane `i`: the sum of all lanes of vector `i`, in that same order.
    fn sums(self, values: [Self::Floats; LANES]) -> Self::Floats;
    /// The largest lane.
    fn largest(self, values: Self::Floats) -> f32;

    /// Tells the memory that what lies `distance` bytes behind `bytes` will be needed soon, if there is anything.
    fn prefetch(self, bytes: &[u8], distance: usize);
    fn load_codes(self, bytes: &[u8; CODES]) -> Self::Codes;
    fn store_codes(self, codes: Self::Codes, to: &mut [u8; CODES]);
    /// Each byte shifted left by `left` bits (right, if negative), and then masked. The mask must clear what the shift moves
    /// over from the neighbouring byte.
    fn shift_and_mask(self, codes: Self::Codes, left: i32, mask: u8) -> Self::Codes;
    /// Each byte shifted right, and then masked. The shift need not be known to the compiler; the mask must clear what the shift
    /// moves over from the neighbouring byte.
    fn shift_right_and_mask(self, codes: Self::Codes, right: u32, mask: u8) -> Self::Codes;
    /// The same four bytes in all lanes.
    fn splat_codes(self, four: &[u8; 4]) -> Self::Codes;
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes;
    /// Looks up each code, which must be less than 16.
    fn look_up(self, codes: Self::Codes, table: &[i8; 16]) -> Self::Codes;
    /// Signed bytes: the values times `factor`, rounded to whole numbers with ties to even, which must lie within a byte.
    fn quantize(self, values: [Self::Floats; 4], factor: Self::Floats) -> Self::Codes;
    /// Lane `i`: the sum of products of bytes `4 i` to `4 i + 3`, `a` being unsigned and at most 127, `b` signed and at
    /// least -127.
    fn dot_unsigned(self, a: Self::Codes, b: Self::Codes) -> Self::Integers;
    /// All lanes `value` times two to the power `left`.
    fn splat_shifted(self, value: i32, left: u32) -> Self::Integers;
    /// Adds to lane `i` of `sum` the products of bytes `4 i` to `4 i + 3`, `a` being unsigned, at most 127 unless `WIDE`, and
    /// `b` signed and at least -127.
    fn accumulate<const WIDE: bool>(self, sum: Self::Integers, a: Self::Codes, b: Self::Codes) -> Self::Integers;
    fn to_floats(self, integers: Self::Integers) -> Self::Floats;
}

/// A kernel with its arguments. Mark `run` as `#[inline(always)]`.
pub(crate) trait Task {
    /// What it computes.
    type Output;
    /// Computes it with the given instructions.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The variable of the environment that chooses instructions, and what it may say.
pub(crate) const CHOICE: &str = "ROPEWALK_KERNELS";
pub(crate) const CHOICES: [&str; 2] = ["auto", "portable"];

/// Whether kernels run in plain code, so that what they compute can be compared.
static PLAIN: LazyLock<bool> = LazyLock::new(|| std::env::var(CHOICE).is_ok_and(|choice| choice == CHOICES[1]));

/// Runs a kernel with the best instructions that this machine has.
pub(crate) fn dispatch<T: Task>(task: T) -> T::Output {
    if *PLAIN {
        return run_portable(task);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = x86::X86::<true>::detect() {
        return simd.run(task);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = x86::X86::<false>::detect() {
        return simd.run(task);
    }
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    if let Some(simd) = neon::Neon::<true, true>::detect() {
        return simd.run(task);
    }
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    if let Some(simd) = neon::Neon::<true, false>::detect() {
        return simd.run(task);
    }
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    if let Some(simd) = neon::Neon::<false, false>::detect() {
        return simd.run(task);
    }
    run_portable(task)
}

/// Runs a kernel in plain code. Not inlined, so that it is compiled once only.
#[inline(never)]
pub(crate) fn run_portable<T: Task>(task: T) -> T::Output {
    task.run(Portable)
}
