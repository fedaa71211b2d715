//! How numbers lie in buffers and on the wire.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::kernels::{narrow_bf16, widen_bf16};
use crate::element::{ElementType, Wire};

/// Elements of [`Encoding::Int8`] that share a scale.
const BLOCK: usize = 64;
/// Bytes of a scale.
const SCALE_BYTES: usize = 4;
/// The largest number of a block in units of its scale.
const INT8_MAX: f32 = 127.0;
/// Adding and subtracting it rounds numbers of up to 2^22 to integers, ties to even.
const ROUNDING: f32 = 12_582_912.0;

/// How 32-bit numbers are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
    /// Blocks of a scale (`f32`) and 64 numbers (`i8`) in units of it; the last block may be shorter.
    Int8,
}

impl Encoding {
    /// That of a buffer; `None` for what cannot be computed with.
    pub(crate) fn of_element(element: ElementType) -> Option<Self> {
        match element {
            ElementType::Bytes => None,
            ElementType::F32 => Some(Self::F32),
            ElementType::F16 => Some(Self::F16),
            ElementType::Bf16 => Some(Self::Bf16),
        }
    }

    /// That on the wire; `None` where it is the buffer's.
    pub(crate) fn of_wire(wire: Wire) -> Option<Self> {
        match wire {
            Wire::Exact => None,
            Wire::Bf16 => Some(Self::Bf16),
            Wire::Int8 => Some(Self::Int8),
        }
    }

    /// The bytes of so many elements from the beginning on.
    pub(crate) fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements * 4,
            Self::F16 | Self::Bf16 => elements * 2,
            Self::Int8 => elements + elements.div_ceil(BLOCK) * SCALE_BYTES,
        }
    }

    /// The elements in so many bytes.
    pub(crate) fn elements(self, bytes: usize) -> usize {
        match self {
            Self::F32 => bytes / 4,
            Self::F16 | Self::Bf16 => bytes / 2,
            Self::Int8 => bytes - bytes.div_ceil(BLOCK + SCALE_BYTES) * SCALE_BYTES,
        }
    }

    /// Reads `target.len()` numbers. `bytes` are aligned for the type that they hold.
    pub(crate) fn decode(self, bytes: &[u8], target: &mut [f32]) {
        match self {
            Self::F32 => target.copy_from_slice(bytemuck::cast_slice(bytes)),
            Self::F16 => bytemuck::cast_slice::<u8, f16>(bytes).convert_to_f32_slice(target),
            Self::Bf16 => widen_bf16(bytemuck::cast_slice(bytes), target),
            Self::Int8 => {
                for (block, target) in bytes.chunks(SCALE_BYTES + BLOCK).zip(target.chunks_mut(BLOCK)) {
                    decode_block(block, target);
                }
            }
        }
    }

    /// Writes `numbers`.
    pub(crate) fn encode(self, numbers: &[f32], bytes: &mut [u8]) {
        match self {
            Self::F32 => bytes.copy_from_slice(bytemuck::cast_slice(numbers)),
            Self::F16 => bytemuck::cast_slice_mut::<u8, f16>(bytes).convert_from_f32_slice(numbers),
            Self::Bf16 => narrow_bf16(numbers, bytemuck::cast_slice_mut(bytes)),
            Self::Int8 => {
                for (numbers, block) in numbers.chunks(BLOCK).zip(bytes.chunks_mut(SCALE_BYTES + BLOCK)) {
                    encode_block(numbers, block);
                }
            }
        }
    }
}

fn decode_block(block: &[u8], target: &mut [f32]) {
    let (scale, numbers) = block.split_at(SCALE_BYTES);
    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
    for (target, &number) in target.iter_mut().zip(numbers) {
        *target = f32::from(number.cast_signed()) * scale;
    }
}

/// A block with a number that is not finite gets NaN as its scale, so that it shows. Numbers too small for a scale
/// become zeros.
fn encode_block(numbers: &[f32], block: &mut [u8]) {
    let finite = numbers.iter().fold(true, |finite, number| finite & number.is_finite());
    let largest =
        numbers.iter().fold(0.0, |largest, number| if number.abs() > largest { number.abs() } else { largest });
    let scale = largest / INT8_MAX;
    let scale = if !finite {
        f32::NAN
    } else if scale < f32::MIN_POSITIVE {
        0.0
    } else {
        scale
    };
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    let (header, bytes) = block.split_at_mut(SCALE_BYTES);
    header.copy_from_slice(&scale.to_le_bytes());
    for (byte, number) in bytes.iter_mut().zip(numbers) {
        let units = number * inverse + ROUNDING - ROUNDING;
        // At most 127, but for a last digit that is rounded away; not a number becomes 0.
        *byte = (units as i8).cast_unsigned();
    }
}
