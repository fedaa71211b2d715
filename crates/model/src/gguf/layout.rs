//! Where the tensors of a file lie, and whether they can.

use std::path::Path;

use bytes::Bytes;
use kernels::DType;

use super::cursor::{CONVERT_AGAIN, DOWNLOAD_AGAIN};
use super::value::quoted;
use super::{Placed, TensorInfo};
use crate::ModelError;

/// What a file says of one of its tensors.
pub(super) struct Record<'a> {
    pub(super) name: &'a str,
    /// Where in the file the record is, for messages.
    pub(super) place: usize,
    pub(super) dtype: DType,
    /// Dimensions, none of them zero.
    pub(super) shape: Vec<usize>,
    /// Where the tensor's bytes begin, counted from the first tensor's place.
    pub(super) offset: u64,
}

impl Record<'_> {
    fn damaged(&self, file: &Path, problem: String, advice: &'static str) -> ModelError {
        ModelError::Damaged {
            file: file.to_owned(),
            place: format!("tensor {}", quoted(self.name)),
            offset: self.place as u64,
            problem,
            advice,
        }
    }

    /// The bytes that the tensor takes.
    fn byte_len(&self, file: &Path) -> Result<usize, ModelError> {
        let columns = self.shape[0];
        if !columns.is_multiple_of(self.dtype.block_len()) {
            let problem = format!(
                "its rows have {columns} values, which {} cannot hold: it stores {} at a time",
                self.dtype,
                self.dtype.block_len()
            );
            return Err(self.damaged(file, problem, CONVERT_AGAIN));
        }
        let row_bytes = (columns / self.dtype.block_len()).checked_mul(self.dtype.block_bytes());
        let bytes = self.shape[1..].iter().try_fold(row_bytes, |bytes, &length| Some(bytes?.checked_mul(length)));
        // The outer option is never empty: it is what `try_fold` needs to carry the inner one, the overflow.
        bytes.flatten().ok_or_else(|| {
            let problem = format!("its dimensions {:?} multiply to more bytes than there can be", self.shape);
            self.damaged(file, problem, CONVERT_AGAIN)
        })
    }
}

/// Finds the bytes of every tensor: inside the file, at a multiple of the alignment, and none over another.
/// `header_end` is the position after the last record.
pub(super) fn place(
    file: &Path,
    bytes: &Bytes,
    header_end: usize,
    alignment: usize,
    records: Vec<Record<'_>>,
) -> Result<Vec<Placed>, ModelError> {
    let mut extents = Vec::with_capacity(records.len());
    let mut tensors = Vec::with_capacity(records.len());
    // A file of metadata alone may end right here, before the padding.
    let data_start = header_end.next_multiple_of(alignment);
    for (index, record) in records.iter().enumerate() {
        let byte_len = record.byte_len(file)?;
        let Some(start) = usize::try_from(record.offset).ok().filter(|offset| offset.is_multiple_of(alignment)) else {
            let problem = format!("its offset {} is not a multiple of the alignment {alignment}", record.offset);
            return Err(record.damaged(file, problem, CONVERT_AGAIN));
        };
        let end = data_start.checked_add(start).and_then(|start| start.checked_add(byte_len));
        let Some(end) = end.filter(|&end| end <= bytes.len()) else {
            let end = data_start as u128 + u128::from(record.offset) + byte_len as u128;
            let problem = format!("the file has {} bytes but the tensor ends at {end}", bytes.len());
            return Err(record.damaged(file, problem, DOWNLOAD_AGAIN));
        };
        let start = end - byte_len;
        extents.push((start, end, index));
        let info =
            TensorInfo { name: record.name.to_owned(), dtype: record.dtype, shape: record.shape.clone(), byte_len };
        tensors.push(Placed { info, data: bytes.slice(start..end), offset: start as u64, file: None });
    }
    extents.sort_unstable();
    for pair in extents.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if start < end {
            let problem = format!("it overlaps tensor {}", quoted(records[first].name));
            return Err(records[second].damaged(file, problem, CONVERT_AGAIN));
        }
    }
    Ok(tensors)
}
