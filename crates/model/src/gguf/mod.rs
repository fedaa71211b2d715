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
pub(crate) struct Placed {
    pub(crate) info: TensorInfo,
    pub(crate) data: Bytes,
    pub(crate) offset: u64,
    pub(crate) file: Option<Arc<OpenFile>>,
}

impl Placed {
    /// A vector that is in no file.
    pub(crate) fn of_floats(name: &str, values: Vec<f32>) -> Self {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (shape, byte_len) = (vec![values.len()], data.len());
        let info = TensorInfo { name: name.to_owned(), dtype: DType::F32, shape, byte_len };
        Self { info, data: data.into(), offset: 0, file: None }
    }
}

/// A file to be read from, beside its map.
#[derive(Debug)]
pub(crate) struct OpenFile(File);

impl OpenFile {
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }
}

impl ReadAt for OpenFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

impl Gguf {
    /// Opens and checks a model. `path` is a GGUF file or any part of a split one (`NAME-00001-of-00003.gguf`), whose
    /// other parts must lie in the same folder; or a folder with a checkpoint in Hugging Face's form.
    ///
    /// # Errors
    /// When a file cannot be mapped, breaks the format in any way, or uses a version or tensor type that is not
    /// supported.
    pub fn open(path: &Path) -> Result<Gguf, ModelError> {
        if path.is_dir() {
            return Gguf::open_folder(path);
        }
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
        let mut metadata = None;
        for mut part in parts {
            files.push(part.file);
            tensors.append(&mut part.tensors);
            metadata.get_or_insert(part.metadata);
        }
        Gguf::of(files, metadata.unwrap_or_default(), tensors)
    }

    /// A model of these files, metadata and tensors.
    pub(crate) fn of(files: Vec<PathBuf>, metadata: Metadata, tensors: Vec<Placed>) -> Result<Gguf, ModelError> {
        let mut index = HashMap::with_capacity(tensors.len());
        for (place, tensor) in tensors.iter().enumerate() {
            let name = &tensor.info.name;
            if index.insert(name.clone(), place).is_some() {
                let problem = format!("tensor `{name}` is in two parts of the model; download it again");
                return Err(ModelError::Split { file: metadata.file().to_owned(), problem });
            }
        }
        Ok(Gguf { files, metadata, tensors, index })
    }
}
