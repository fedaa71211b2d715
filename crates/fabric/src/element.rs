//! What the elements of a buffer are, and what a reduction does with them.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The type of a collective's elements, as a message's header carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElementType {
    /// Bytes, of which the fabric knows no more.
    Bytes = 0,
    /// 32-bit floating point.
    F32 = 1,
    /// 16-bit floating point of IEEE 754.
    F16 = 2,
    /// The upper half of a 32-bit floating-point number.
    Bf16 = 3,
}

impl ElementType {
    const ALL: [Self; 4] = [Self::Bytes, Self::F32, Self::F16, Self::Bf16];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|element| *element as u8 == number)
    }

    /// Bytes of one element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Bytes => 1,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// What a reduction makes of the members' elements.
///
/// Elements are taken in the team's order. 16-bit elements are added up in 32 bits and rounded once at the end. Where
/// one is not a number, the result is the one quiet NaN without a sign, so that all ranks hold the same bits even where
/// their processors differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operator {
    /// Their sum.
    Sum = 1,
    /// The largest; of equal ones the first, which matters for zeros.
    Max = 2,
}

impl Operator {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Sum, Self::Max].into_iter().find(|operator| *operator as u8 == number)
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Max => "max",
        })
    }
}

/// How numbers travel between ranks. What is not exact saves time on slow links, and costs precision; all ranks still
/// hold the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wire {
    /// As they are.
    #[default]
    Exact = 0,
    /// `f32` as bf16: half the bytes, 8 bits of precision.
    Bf16 = 1,
    /// `f32` as blocks of 64 8-bit numbers with a common scale: about a quarter of the bytes. A block in which a number
    /// is not finite becomes all NaN.
    Int8 = 2,
}

impl Wire {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Exact, Self::Bf16, Self::Int8].into_iter().find(|wire| *wire as u8 == number)
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Bf16 => "bf16 on the wire",
            Self::Int8 => "8-bit on the wire",
        })
    }
}

/// What a collective can move.
pub trait Element: Pod + sealed::Typed {}

/// What a collective can reduce.
pub trait Number: Element {}

pub(crate) mod sealed {
    use super::ElementType;

    /// Kept from being implemented elsewhere, as headers have numbers for these types only.
    pub trait Typed {
        /// What headers call this type.
        const TYPE: ElementType;
    }
}

impl sealed::Typed for u8 {
    const TYPE: ElementType = ElementType::Bytes;
}
impl sealed::Typed for f32 {
    const TYPE: ElementType = ElementType::F32;
}
impl sealed::Typed for f16 {
    const TYPE: ElementType = ElementType::F16;
}
impl sealed::Typed for bf16 {
    const TYPE: ElementType = ElementType::Bf16;
}
impl Element for u8 {}
impl Element for f32 {}
impl Element for f16 {}
impl Element for bf16 {}
impl Number for f32 {}
impl Number for f16 {}
impl Number for bf16 {}
