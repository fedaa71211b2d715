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

use std::ops::Range;

use crate::simd::{CODES, LANES, Simd};
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

/// Vectors of codes that hold a block of 32 columns of eight rows.
pub(crate) const VECTORS: usize = 8;

/// A format whose values are whole numbers times scales, some with something added, so that products can be computed with
/// integers.
///
/// Kernels take eight rows at a time, each in a lane of its own, from a packed form in which the bytes of the rows lie as they
/// are used. The bits of a vector of codes are those of four columns of each of the rows; where the stored form has several
/// columns in a byte, so has the packed one.
pub(crate) trait Quantized: Format {
    /// Bytes of one packed block of eight rows.
    const PACKED_BYTES: usize;
    /// If codes are raised so that none is negative: by which power of two.
    const ZERO_SHIFT: Option<u32> = None;
    /// Whether codes may be larger than 127.
    const WIDE: bool = false;
    /// Whether each half of 32 columns has a scale of its own.
    const HALVES: bool = false;
    /// Whether something is added to all values of a scale.
    const MINIMUMS: bool = false;

    /// Packs one block of each of eight rows.
    fn pack(rows: &[&[u8]; LANES], packed: &mut [u8]);

    /// Of the 32 columns that are the `block`-th of a packed block, the codes of columns `4 i` to `4 i + 3` of each row.
    fn codes<S: Simd>(simd: S, packed: &[u8], block: usize, i: usize) -> S::Codes;

    /// What the codes of each half of these columns are to be multiplied with, by row.
    fn scales<S: Simd>(simd: S, packed: &[u8], block: usize) -> [S::Floats; 2];

    /// What is to be added to the values of each half of these columns, by row.
    #[inline(always)]
    fn minimums<S: Simd>(simd: S, _packed: &[u8], _block: usize) -> [S::Floats; 2] {
        [simd.splat(0.0); 2]
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

/// Words of four bytes of eight rows, word by word.
fn pack_words(rows: &[&[u8]; LANES], bytes: Range<usize>, packed: &mut [u8]) {
    let words = rows.map(|row| row[bytes.clone()].as_chunks::<4>().0);
    for (i, packed) in packed.as_chunks_mut::<CODES>().0.iter_mut().enumerate() {
        for (word, row) in packed.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *word = row[i];
        }
    }
}

/// The half-precision number at `offset` of each row.
fn pack_halves(rows: &[&[u8]; LANES], offset: usize, packed: &mut [u8]) {
    for (half, row) in packed.as_chunks_mut::<2>().0.iter_mut().zip(rows) {
        *half = *part(row, offset);
    }
}

/// Some bytes of each row, byte by byte.
fn pack_bytes<const COUNT: usize>(rows: &[&[u8]; LANES], of: impl Fn(&[u8]) -> [u8; COUNT], packed: &mut [u8]) {
    for (row, block) in rows.iter().enumerate() {
        for (i, byte) in of(block).into_iter().enumerate() {
            packed[i * LANES + row] = byte;
        }
    }
}

/// A fifth bit for each of 32 columns, column `i` in bit `i` of four bytes at `offset`. In byte `j` of a row's packed word, bit
/// `i` is that of column `4 i + j`, which belongs to vector `i`.
fn pack_fifth_bits(rows: &[&[u8]; LANES], offset: usize, packed: &mut [u8]) {
    for (word, row) in packed.as_chunks_mut::<4>().0.iter_mut().zip(rows) {
        let bits = u32::from_le_bytes(*part(row, offset));
        *word = [0, 1, 2, 3].map(|j| {
            // Every fourth bit, moved together.
            let spread = (bits >> j) & 0x1111_1111;
            let pairs = (spread | (spread >> 3)) & 0x0303_0303;
            let fours = (pairs | (pairs >> 6)) & 0x000f_000f;
            (fours | (fours >> 12)) as u8
        });
    }
}

/// Vector `i` of codes whose first four vectors lie in the low and last four in the high halves of bytes from `offset` on.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, packed: &[u8], offset: usize, i: usize) -> S::Codes {
    let both = simd.load_codes(part(packed, offset + i % 4 * CODES));
    simd.shift_and_mask(both, if i < 4 { 0 } else { -4 }, 0x0f)
}

/// The first 160 bytes of packed Q4_K and Q5_K: the rows' two scales, then the 6-bit scales and minimums, a byte each.
fn pack_scales_and_minimums(rows: &[&[u8]; LANES], packed: &mut [u8]) {
    pack_halves(rows, 0, &mut packed[..16]);
    pack_halves(rows, 2, &mut packed[16..32]);
    pack_bytes(rows, |row| unpack_scales_and_minimums(part(row, 4)).0, &mut packed[32..96]);
    pack_bytes(rows, |row| unpack_scales_and_minimums(part(row, 4)).1, &mut packed[96..160]);
}

/// The scale of 32 columns of packed Q4_K and Q5_K.
#[inline(always)]
fn scale_of_block<S: Simd>(simd: S, packed: &[u8], block: usize) -> S::Floats {
    simd.mul(simd.load_f16(part(packed, 0)), simd.widen_bytes(part(packed, 32 + block * LANES)))
}

/// What is added to the values of 32 columns of packed Q4_K and Q5_K.
#[inline(always)]
fn minimum_of_block<S: Simd>(simd: S, packed: &[u8], block: usize) -> S::Floats {
    let minimum = simd.sub(simd.splat(0.0), simd.load_f16(part(packed, 16)));
    simd.mul(minimum, simd.widen_bytes(part(packed, 96 + block * LANES)))
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
