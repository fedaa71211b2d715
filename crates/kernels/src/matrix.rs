//! Weight matrices, as files store them or packed.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::formats::{Format, with_format};
use crate::packing::{ReadAt, with_scratch};
use crate::{DType, KernelError};

/// Rows that the kernels for quantized formats take together.
pub(crate) const ROWS: usize = 8;

/// Weights `[rows, columns]`, row after row in the blocks of a format, as GGUF files store them, or packed by
/// [`crate::pack`]. The bytes may lie in a memory map; clones and [`Matrix::select_rows`] share them.
#[derive(Debug, Clone)]
pub struct Matrix {
    dtype: DType,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    data: Data,
    source: Option<Source>,
}

/// The bytes of a matrix.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    /// Row after row.
    Stored(Bytes),
    /// Tile after tile.
    Packed(Bytes),
}

/// Where the stored bytes can be read, too.
#[derive(Debug, Clone)]
struct Source {
    file: Arc<dyn ReadAt>,
    /// Of the first row.
    offset: u64,
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
        Ok(Matrix { dtype, rows, columns, row_bytes, data: Data::Stored(data), source: None })
    }

    /// Says where the same bytes can be read from a file: those of the first row from `offset` on.
    #[must_use]
    pub fn with_source(self, file: Arc<dyn ReadAt>, offset: u64) -> Matrix {
        Matrix { source: Some(Source { file, offset }), ..self }
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

    /// Bytes that the weights take in stored form.
    pub fn byte_len(&self) -> usize {
        self.rows * self.row_bytes
    }

    /// The rows of `range` as a matrix of their own, over the same bytes.
    ///
    /// # Panics
    /// When `range` does not lie within the rows, or the matrix is packed; that is for the caller to see to.
    pub fn select_rows(&self, range: Range<usize>) -> Matrix {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of a matrix of {} rows", self.rows);
        let bytes = self.stored().slice(range.start * self.row_bytes..range.end * self.row_bytes);
        let source = self.source.as_ref().map(|source| Source {
            file: Arc::clone(&source.file),
            offset: source.offset + (range.start * self.row_bytes) as u64,
        });
        Matrix { rows: range.len(), data: Data::Stored(bytes), source, ..*self }
    }

    /// Writes the `columns` values of `row` to `out`: the look-up in an embedding table.
    ///
    /// # Panics
    /// When there is no such row, `out` is not as long as a row, or the matrix is packed.
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
        &self.stored()[row * self.row_bytes..][..self.row_bytes]
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Groups of eight rows; the last one may be smaller.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    pub(crate) fn data(&self) -> &Data {
        &self.data
    }

    pub(crate) fn set_data(&mut self, data: Data) {
        self.data = data;
    }

    fn stored(&self) -> &Bytes {
        match &self.data {
            Data::Stored(bytes) => bytes,
            Data::Packed(_) => panic!("a packed matrix has no stored rows"),
        }
    }

    /// Calls `f` with the stored bytes of some rows, read from the file if there is one.
    pub(crate) fn with_stored_rows(&self, rows: Range<usize>, f: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let range = rows.start * self.row_bytes..rows.end * self.row_bytes;
        let Some(source) = &self.source else {
            f(&self.stored()[range]);
            return Ok(());
        };
        with_scratch(|bytes| {
            bytes.resize(range.len(), 0);
            source.file.read_at(source.offset + range.start as u64, bytes)?;
            f(bytes);
            Ok(())
        })
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
