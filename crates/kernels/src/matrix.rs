//! Weight matrices in their stored form.

use std::ops::Range;

use bytes::Bytes;

use crate::formats::{Format, with_format};
use crate::{DType, KernelError};

/// Weights `[rows, columns]`, row after row in the blocks of a format, as GGUF files store them. The bytes may lie in a
/// memory map; clones and [`Matrix::select_rows`] share them.
#[derive(Debug, Clone)]
pub struct Matrix {
    dtype: DType,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    data: Bytes,
}

impl Matrix {
    /// A matrix over `data`, which must be exactly as long as `rows` rows of `columns` values take.
    ///
    /// # Errors
    /// When `columns` does not fill whole blocks, the size overflows, or `data` has another length.
    pub fn new(dtype: DType, rows: usize, columns: usize, data: Bytes) -> Result<Matrix, KernelError> {
        let too_large = || KernelError::TooLarge { dtype, rows, columns };
        let row_bytes = dtype.row_bytes(columns)?;
        let expected = row_bytes.checked_mul(rows).ok_or_else(too_large)?;
        let values = columns.checked_mul(rows).ok_or_else(too_large)?;
        if data.len() != expected {
            return Err(KernelError::DataLength { dtype, values, expected, found: data.len() });
        }
        Ok(Matrix { dtype, rows, columns, row_bytes, data })
    }

    /// The number of rows, which is the number of outputs of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns, which is the number of inputs of a product.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How the values are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes that the weights take.
    pub fn byte_len(&self) -> usize {
        self.data.len()
    }

    /// The rows of `range` as a matrix of their own, over the same bytes.
    ///
    /// # Panics
    /// When `range` does not lie within the rows; that is for the caller to see to.
    pub fn select_rows(&self, range: Range<usize>) -> Matrix {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of a matrix of {} rows", self.rows);
        let data = self.data.slice(range.start * self.row_bytes..range.end * self.row_bytes);
        Matrix { rows: range.len(), data, ..*self }
    }

    /// Writes the `columns` values of `row` to `out`: the look-up in an embedding table.
    ///
    /// # Panics
    /// When there is no such row, or `out` is not as long as a row.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "a row has as many values as the matrix has columns");
        with_format!(self.dtype, F => {
            for (block, values) in self.row(row).chunks_exact(F::BYTES).zip(out.chunks_exact_mut(F::VALUES)) {
                F::dequantize(block, values);
            }
        });
    }

    /// The stored bytes of one row.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.row_bytes..][..self.row_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Matrix {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        Matrix::new(DType::F32, 4, 3, Bytes::copy_from_slice(bytemuck::cast_slice(&values))).unwrap()
    }

    #[test]
    fn selected_rows_share_the_bytes() {
        let matrix = numbers();
        let part = matrix.select_rows(1..3).select_rows(1..2);
        let mut row = [0.0; 3];
        part.row_into(0, &mut row);
        assert_eq!(row, [6.0, 7.0, 8.0]);
        assert_eq!((part.rows(), part.columns(), part.byte_len()), (1, 3, 12));
        assert_eq!(matrix.select_rows(4..4).rows(), 0);
    }

    #[test]
    fn sizes_are_checked() {
        let wrong = Matrix::new(DType::F32, 4, 3, Bytes::from_static(&[0; 44]));
        assert!(matches!(wrong, Err(KernelError::DataLength { expected: 48, found: 44, .. })));
        let huge = Matrix::new(DType::F32, usize::MAX / 2, 3, Bytes::new());
        assert!(matches!(huge, Err(KernelError::TooLarge { .. })));
    }

    #[test]
    #[should_panic(expected = "rows 3..5")]
    fn rows_out_of_range_panic() {
        numbers().select_rows(3..5);
    }
}
