//! The tensor formats that this crate computes with.

use std::fmt;

use crate::KernelError;
use crate::formats::{Format, with_format};

/// How a tensor's values are stored. The layouts are those of GGUF files.
#[allow(missing_docs)] // The names say it all: they are the names that the format itself uses.
#[allow(non_camel_case_types)] // Q4_0 is how everyone writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

impl DType {
    /// Every format, in the order of the enum.
    pub const ALL: &[DType] = &[
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2K,
        DType::Q3K,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
        DType::Iq4Nl,
        DType::Iq4Xs,
        DType::Mxfp4,
    ];

    /// Values in one block, the smallest unit that the format stores.
    pub fn block_len(self) -> usize {
        with_format!(self, F => F::VALUES)
    }

    /// Bytes that one block takes.
    pub fn block_bytes(self) -> usize {
        with_format!(self, F => F::BYTES)
    }

    /// Whether values are stored as floats, each by itself.
    pub(crate) fn is_float(self) -> bool {
        with_format!(self, float _F => true, quantized _F => false)
    }

    /// The name that GGUF tools print, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q2K => "Q2_K",
            DType::Q3K => "Q3_K",
            DType::Q4K => "Q4_K",
            DType::Q5K => "Q5_K",
            DType::Q6K => "Q6_K",
            DType::Iq4Nl => "IQ4_NL",
            DType::Iq4Xs => "IQ4_XS",
            DType::Mxfp4 => "MXFP4",
        }
    }

    /// Bytes that a row of `columns` values takes.
    ///
    /// # Errors
    /// When `columns` is no multiple of [`DType::block_len`], or the row is larger than the address space.
    pub fn row_bytes(self, columns: usize) -> Result<usize, KernelError> {
        if !columns.is_multiple_of(self.block_len()) {
            return Err(KernelError::RowLength { dtype: self, columns, block: self.block_len() });
        }
        (columns / self.block_len()).checked_mul(self.block_bytes()).ok_or(KernelError::TooLarge {
            dtype: self,
            rows: 1,
            columns,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_complete() {
        let mut names: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 16);
    }

    #[test]
    fn rows_must_fill_blocks() {
        assert_eq!(DType::Q4_1.row_bytes(576).unwrap(), 18 * 20);
        assert_eq!(DType::F16.row_bytes(5).unwrap(), 10);
        let message = DType::Q4K.row_bytes(576).unwrap_err().to_string();
        assert!(message.contains("576") && message.contains("Q4_K") && message.contains("256"), "{message}");
        assert!(matches!(DType::F32.row_bytes(usize::MAX), Err(KernelError::TooLarge { .. })));
    }
}
