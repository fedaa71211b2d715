//! Tensors of a file as the weights that blocks compute with, with their shapes checked.

use kernels::{Matrix, dequantize};

use crate::gguf::Tensor;
use crate::{Gguf, ModelError};

impl Gguf {
    /// The matrix `name`, which must have shape [rows, columns]. Its data stays in the map.
    pub(crate) fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Matrix, ModelError> {
        let tensor = self.tensor(name)?;
        if tensor.info.shape != [columns, rows] {
            let problem = format!("has shape {:?}; the model needs [{columns}, {rows}]", tensor.info.shape);
            return Err(self.bad_tensor(name, problem));
        }
        self.stacked(name, tensor, rows, columns)
    }

    /// The `count` matrices `name`, each of shape [rows, columns]: one after the other in one tensor, or each in a tensor of its
    /// own, as folders have them.
    pub(crate) fn matrices(
        &self,
        name: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Vec<Matrix>, ModelError> {
        let together = format!("{name}.weight");
        if self.find(&together).is_none() && self.find(&format!("{name}.0.weight")).is_some() {
            return (0..count).map(|index| self.matrix(&format!("{name}.{index}.weight"), rows, columns)).collect();
        }
        let tensor = self.tensor(&together)?;
        if tensor.info.shape != [columns, rows, count] {
            let problem = format!("has shape {:?}; the model needs [{columns}, {rows}, {count}]", tensor.info.shape);
            return Err(self.bad_tensor(&together, problem));
        }
        let all = self.stacked(&together, tensor, rows * count, columns)?;
        Ok((0..count).map(|index| all.select_rows(index * rows..(index + 1) * rows)).collect())
    }

    /// A tensor as a matrix of so many rows.
    fn stacked(&self, name: &str, tensor: Tensor<'_>, rows: usize, columns: usize) -> Result<Matrix, ModelError> {
        let matrix = Matrix::new(tensor.info.dtype, rows, columns, tensor.data);
        let matrix = matrix.map_err(|error| self.bad_tensor(name, format!("cannot be used: {error}")))?;
        Ok(match tensor.source {
            Some((file, offset)) => matrix.with_source(file, offset),
            None => matrix,
        })
    }

    /// The vector `name` of any length, as floats.
    pub(crate) fn vector(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let Tensor { info, data, .. } = self.tensor(name)?;
        let [length] = info.shape[..] else {
            return Err(self.bad_tensor(name, format!("has shape {:?}; it must have one dimension", info.shape)));
        };
        let mut values = vec![0.0; length];
        let result = dequantize(info.dtype, &data, &mut values);
        result.map_err(|error| self.bad_tensor(name, format!("cannot be used: {error}")))?;
        Ok(values)
    }

    /// The vector `name`, which must have `length` elements.
    pub(crate) fn vector_of(&self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let values = self.vector(name)?;
        if values.len() == length {
            return Ok(values);
        }
        Err(self.bad_tensor(name, format!("has {} elements; the model needs {length}", values.len())))
    }

    /// The same for a vector that the file may lack.
    pub(crate) fn optional_vector(&self, name: &str, length: usize) -> Result<Option<Vec<f32>>, ModelError> {
        self.find(name).is_some().then(|| self.vector_of(name, length)).transpose()
    }

    fn bad_tensor(&self, name: &str, problem: String) -> ModelError {
        ModelError::BadTensor { file: self.metadata().file().to_owned(), tensor: name.to_owned(), problem }
    }
}
