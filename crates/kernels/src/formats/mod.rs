//! One file per tensor format: its block layout, its reference dequantizer, and how the fast kernels unpack it.

mod float;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

pub(crate) use float::{Bf16, F16, F32};
pub(crate) use iq4_nl::Iq4Nl;
pub(crate) use iq4_xs::Iq4Xs;
pub(crate) use mxfp4::Mxfp4;
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;

use crate::simd::{LANES, Simd};
use crate::{DType, KernelError};

/// A tensor format: how many values a block holds, how many bytes it takes, and what the bytes mean.
pub(crate) trait Format {
    /// Values in one block.
    const VALUES: usize;
    /// Bytes of one block.
    const BYTES: usize;

    /// The reference: writes the `VALUES` values that the `BYTES` bytes of `block` stand for, with the very roundings
    /// of the Python `gguf` package.
    fn dequantize(block: &[u8], out: &mut [f32]);
}

/// Columns that the fast kernels take at a time: a whole block of the formats that have large ones.
pub(crate) const GROUP: usize = 256;

/// A format whose values are whole numbers times scales, plus offsets, so that products can be computed with integers.
/// The stored bytes of a row come in groups of [`GROUP`] columns, the last of which may have fewer blocks of 32 columns.
pub(crate) trait Quantized: Format {
    /// Whether the codes are signed bytes, and the offsets zero. Otherwise codes are unsigned and at most 128.
    const SIGNED: bool = false;
    /// Whether each half of a block of 32 columns has a scale and an offset of its own.
    const HALVES: bool = false;

    /// What the codes of a group are to be multiplied with, and what is to be added then.
    fn factors<S: Simd>(simd: S, group: &[u8]) -> Factors<S>;

    /// The codes of one block of a group.
    fn codes<S: Simd>(simd: S, group: &[u8], block: usize) -> S::Codes;
}

/// A scale and an offset for each of the eight blocks of a group, or for each half of them. They are zero for blocks beyond
/// the end of the row.
#[derive(Clone, Copy)]
pub(crate) enum Factors<S: Simd> {
    Blocks { scales: S::Floats, offsets: S::Floats },
    Halves { scales: [S::Floats; 2], offsets: [S::Floats; 2] },
}

impl<S: Simd> Factors<S> {
    /// Scales of signed codes, which have no offsets.
    #[inline(always)]
    fn signed(simd: S, scales: S::Floats) -> Factors<S> {
        Factors::Blocks { scales, offsets: simd.splat(0.0) }
    }
}

/// A format of plain floats.
pub(crate) trait Float: Format {
    /// Widens the next eight values.
    fn load<S: Simd>(simd: S, bytes: &[u8]) -> S::Floats;
}

/// Evaluates an expression with a type alias for the [`Format`] of a [`DType`], or one of two expressions, depending on
/// whether that is a [`Float`] or a [`Quantized`] format.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr) => {
        $crate::formats::with_format!($dtype, float $format => $body, quantized $format => $body)
    };
    ($dtype:expr, float $float:ident => $for_float:expr, quantized $quantized:ident => $for_quantized:expr) => {{
        use $crate::formats as f;
        match $dtype {
            $crate::DType::F32 => $crate::formats::with_format!(@ f::F32, $float => $for_float),
            $crate::DType::F16 => $crate::formats::with_format!(@ f::F16, $float => $for_float),
            $crate::DType::BF16 => $crate::formats::with_format!(@ f::Bf16, $float => $for_float),
            $crate::DType::Q4_0 => $crate::formats::with_format!(@ f::Q4_0, $quantized => $for_quantized),
            $crate::DType::Q4_1 => $crate::formats::with_format!(@ f::Q4_1, $quantized => $for_quantized),
            $crate::DType::Q5_0 => $crate::formats::with_format!(@ f::Q5_0, $quantized => $for_quantized),
            $crate::DType::Q5_1 => $crate::formats::with_format!(@ f::Q5_1, $quantized => $for_quantized),
            $crate::DType::Q8_0 => $crate::formats::with_format!(@ f::Q8_0, $quantized => $for_quantized),
            $crate::DType::Q2K => $crate::formats::with_format!(@ f::Q2K, $quantized => $for_quantized),
            $crate::DType::Q3K => $crate::formats::with_format!(@ f::Q3K, $quantized => $for_quantized),
            $crate::DType::Q4K => $crate::formats::with_format!(@ f::Q4K, $quantized => $for_quantized),
            $crate::DType::Q5K => $crate::formats::with_format!(@ f::Q5K, $quantized => $for_quantized),
            $crate::DType::Q6K => $crate::formats::with_format!(@ f::Q6K, $quantized => $for_quantized),
            $crate::DType::Iq4Nl => $crate::formats::with_format!(@ f::Iq4Nl, $quantized => $for_quantized),
            $crate::DType::Iq4Xs => $crate::formats::with_format!(@ f::Iq4Xs, $quantized => $for_quantized),
            $crate::DType::Mxfp4 => $crate::formats::with_format!(@ f::Mxfp4, $quantized => $for_quantized),
        }
    }};
    (@ $type:ty, $format:ident => $body:expr) => {{
        type $format = $type;
        $body
    }};
}
pub(crate) use with_format;

/// Writes the values that `bytes` stand for: the plain reference that every fast kernel is tested against. It agrees
/// bit for bit with the Python `gguf` package.
///
/// # Errors
/// When `out.len()` is no multiple of the format's block, or `bytes` is not exactly as long as that many values need.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
    let expected = dtype.row_bytes(out.len())?;
    if bytes.len() != expected {
        return Err(KernelError::DataLength { dtype, values: out.len(), expected, found: bytes.len() });
    }
    with_format!(dtype, F => dequantize_blocks::<F>(bytes, out));
    Ok(())
}

fn dequantize_blocks<F: Format>(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.chunks_exact(F::BYTES).zip(out.chunks_exact_mut(F::VALUES)) {
        F::dequantize(block, values);
    }
}

/// The half-precision float at the two bytes from `offset` of `block`, widened.
fn half_at(block: &[u8], offset: usize) -> f32 {
    half::f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// The 4-bit code of value `index` (of 32) where byte `i` of 16 holds value `i` in its low and value `i + 16` in its
/// high half.
fn split_nibble(codes: &[u8], index: usize) -> u8 {
    if index < 16 { codes[index] & 0x0f } else { codes[index - 16] >> 4 }
}

/// The eight 6-bit scales and eight 6-bit minimums that Q4_K and Q5_K pack into 12 bytes: scales 0 to 3 are the low six
/// bits of bytes 0 to 3 and minimums 0 to 3 those of bytes 4 to 7; the others have their low four bits in bytes 8 to 11
/// (scale low, minimum high half) and their top two in the spare bits of the first eight bytes.
#[inline(always)]
fn unpack_scales_and_minimums(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |from: usize| u32::from_le_bytes(*part(packed, from));
    let (first, second, third) = (word(0), word(4), word(8));
    // Four bytes at a time: six low bits, or four bits from the third word and two from the spare bits.
    let low = |word: u32| u64::from(word & 0x3f3f_3f3f);
    let high = |fours: u32, spare: u32| u64::from((fours & 0x0f0f_0f0f) | ((spare >> 2) & 0x3030_3030)) << 32;
    let scales = low(first) | high(third, first);
    let minimums = low(second) | high(third >> 4, second);
    (scales.to_le_bytes(), minimums.to_le_bytes())
}

/// The part of a block that starts at `offset`.
#[inline(always)]
fn part<const LENGTH: usize>(block: &[u8], offset: usize) -> &[u8; LENGTH] {
    match block[offset..].first_chunk() {
        Some(part) => part,
        None => panic!("a part of a block reaches beyond its end"),
    }
}

/// What the first `SIZE` bytes of each of a group's blocks stand for; zero (or the like) for blocks beyond the row's end.
#[inline(always)]
fn starts<const BYTES: usize, const SIZE: usize, T: Copy + Default>(
    group: &[u8],
    read: impl Fn([u8; SIZE]) -> T,
) -> [T; LANES] {
    let (blocks, _) = group.as_chunks::<BYTES>();
    let mut starts = [T::default(); LANES];
    for (start, block) in starts.iter_mut().zip(blocks) {
        *start = read(*part(block, 0));
    }
    starts
}

/// The half-precision number at `offset`, in all lanes.
#[inline(always)]
fn all_halves<S: Simd>(simd: S, block: &[u8], offset: usize) -> S::Floats {
    simd.widen_halves([u16::from_le_bytes(*part(block, offset)); LANES])
}

/// The scales of the eight groups of a Q4_K or Q5_K block, and what to add to their values, from the block's first bytes.
#[inline(always)]
fn factors_with_minimums<S: Simd>(simd: S, header: &[u8; 16]) -> Factors<S> {
    let (scales, minimums) = unpack_scales_and_minimums(part(header, 4));
    let minimum = simd.sub(simd.splat(0.0), all_halves(simd, header, 2));
    Factors::Blocks {
        scales: simd.mul(all_halves(simd, header, 0), simd.widen_bytes(&scales)),
        offsets: simd.mul(minimum, simd.widen_bytes(&minimums)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lengths_are_errors() {
        let mut out = [0.0; 32];
        assert!(matches!(dequantize(DType::Q8_0, &[0; 33], &mut out), Err(KernelError::DataLength { .. })));
        assert!(matches!(dequantize(DType::Q8_0, &[0; 34], &mut out[..31]), Err(KernelError::RowLength { .. })));
        assert!(dequantize(DType::Q8_0, &[0; 34], &mut out).is_ok());
    }
}
