//! GGUF files: metadata and tensors, checked in full before anything is used.
//!
//! The format is described at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>: a header with counts, then
//! key-value pairs, then one record per tensor, then the tensors' bytes, each at a multiple of the alignment.

mod cursor;
mod layout;
mod metadata;
mod part;
mod split;
mod types;
mod value;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kernels::{DType, ReadAt};

pub use metadata::Metadata;
pub(crate) use value::quoted;
pub use value::{Array, Strings, Value};

use crate::ModelError;
use part::Part;

/// An open model: one GGUF file, or all the parts of a split one.
///
/// Opening reads the metadata and checks every tensor's record; the tensors' bytes stay on disk until they are touched.
#[derive(Debug, Clone)]
pub struct Gguf {
    files: Vec<PathBuf>,
    metadata: Metadata,
    tensors: Vec<Placed>,
    index: HashMap<String, usize>,
}

/// What is known of a tensor without touching its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The tensor's name, unique in the model.
    pub name: String,
    /// The format of its values.
    pub dtype: DType,
    /// Its dimensions in ggml's order, the one whose elements are neighbours first: `[columns, rows, ...]`.
    pub shape: Vec<usize>,
    /// How many bytes it takes in the file.
    pub byte_len: usize,
}

/// A tensor with its bytes, which are a window into the mapped file.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Name, format and shape.
    pub info: &'a TensorInfo,
    /// The values, rows one after the other, in the layout of `info.dtype`.
    pub data: Bytes,
    /// The file and the position in it, unless the model was read from memory.
    pub(crate) source: Option<(Arc<dyn ReadAt>, u64)>,
}

/// A tensor and where its bytes are.
#[derive(Debug, Clone)]
struct Placed {
    info: TensorInfo,
    data: Bytes,
    offset: u64,
    file: Option<Arc<OpenFile>>,
}

/// A file to be read from, beside its map.
#[derive(Debug)]
struct OpenFile(File);

impl ReadAt for OpenFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

impl Gguf {
    /// Opens and checks a model. `path` is a GGUF file or any part of a split one (`NAME-00001-of-00003.gguf`), whose
    /// other parts must lie in the same folder.
    ///
    /// # Errors
    /// When a file cannot be mapped, breaks the format in any way, or uses a version or tensor type that is not
    /// supported.
    pub fn open(path: &Path) -> Result<Gguf, ModelError> {
        let opened = Part::of_file(path.to_owned(), mapped::map_file(path)?)?;
        Gguf::join(split::all_parts(opened)?)
    }

    /// Reads a model from memory. `name` stands for the file in messages; the model must not be split.
    ///
    /// # Errors
    /// As for [`Gguf::open`].
    pub fn from_bytes(name: &Path, bytes: Bytes) -> Result<Gguf, ModelError> {
        let part = Part::parse(name.to_owned(), bytes)?;
        split::require_whole(&part)?;
        Gguf::join(vec![part])
    }

    /// The metadata; that of the first part if the model is split.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|tensor| &tensor.info)
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, ModelError> {
        self.find(name)
            .ok_or_else(|| ModelError::MissingTensor { file: self.files[0].clone(), tensor: name.to_owned() })
    }

    /// The tensor called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let tensor = &self.tensors[*self.index.get(name)?];
        let source = tensor.file.as_ref().map(|file| (Arc::clone(file) as Arc<dyn ReadAt>, tensor.offset));
        Some(Tensor { info: &tensor.info, data: tensor.data.clone(), source })
    }

    /// The files that make up the model, in order; at least one.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Puts the parts of a model together. There is at least one.
    fn join(parts: Vec<Part>) -> Result<Gguf, ModelError> {
        let mut files = Vec::with_capacity(parts.len());
        let mut tensors = Vec::with_capacity(parts.iter().map(|part| part.tensors.len()).sum());
        let mut index = HashMap::with_capacity(tensors.capacity());
        let mut metadata = None;
        for part in parts {
            for tensor in part.tensors {
                let name = &tensor.info.name;
                if index.insert(name.clone(), tensors.len()).is_some() {
                    let problem = format!("tensor `{name}` is in two parts; download the model again");
                    return Err(ModelError::Split { file: part.file, problem });
                }
                tensors.push(tensor);
            }
            files.push(part.file);
            metadata.get_or_insert(part.metadata);
        }
        Ok(Gguf { files, metadata: metadata.unwrap_or_default(), tensors, index })
    }
}
