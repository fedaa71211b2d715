//! Makes GGUF files in memory, well formed unless told otherwise.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "helpers of several tests, none of which uses all of them")]

use bytes::Bytes;
use model::{Gguf, ModelError};

/// Numbers of value types.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// A file in the making.
#[derive(Clone)]
pub struct Writer {
    pub version: u32,
    pub alignment: usize,
    /// Overrides for the counts in the header.
    pub pair_count: Option<u64>,
    pub tensor_count: Option<u64>,
    pub pairs: Vec<u8>,
    pub pairs_written: u64,
    pub tensors: Vec<TensorRecord>,
}

#[derive(Clone)]
pub struct TensorRecord {
    pub name: String,
    pub dimensions: Vec<u64>,
    pub kind: u32,
    /// Where its bytes are said to be; where they are unless told otherwise.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Self {
        Writer {
            version: 3,
            alignment: 32,
            pair_count: None,
            tensor_count: None,
            pairs: Vec::new(),
            pairs_written: 0,
            tensors: Vec::new(),
        }
    }
}

impl Writer {
    /// A pair whose value is given in bytes.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.extend(string(key));
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.pairs_written += 1;
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, U32, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, F32, &value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, BOOL, &[value.into()])
    }

    pub fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, STRING, &string(value))
    }

    pub fn strings<S: AsRef<str>>(self, key: &str, values: &[S]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| string(value.as_ref())).collect();
        self.raw(key, ARRAY, &array(STRING, values.len(), &elements))
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, ARRAY, &array(I32, values.len(), &elements))
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, ARRAY, &array(F32, values.len(), &elements))
    }

    pub fn tensor(mut self, name: &str, kind: u32, dimensions: &[u64], data: Vec<u8>) -> Self {
        let (name, dimensions) = (name.to_owned(), dimensions.to_vec());
        self.tensors.push(TensorRecord { name, dimensions, kind, offset: None, data });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.pair_count.unwrap_or(self.pairs_written).to_le_bytes());
        file.extend(&self.pairs);
        let mut offset = 0;
        for tensor in &self.tensors {
            file.extend(string(&tensor.name));
            file.extend((tensor.dimensions.len() as u32).to_le_bytes());
            file.extend(tensor.dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(&tensor.data);
        }
        file
    }

    pub fn read(&self) -> Result<Gguf, ModelError> {
        read(self.bytes())
    }
}

/// Reads a file from memory.
pub fn read(bytes: Vec<u8>) -> Result<Gguf, ModelError> {
    Gguf::from_bytes("test.gguf".as_ref(), Bytes::from(bytes))
}

/// A length and as many bytes.
pub fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The value of an array whose elements are given in bytes.
pub fn array(kind: u32, count: usize, elements: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((count as u64).to_le_bytes());
    bytes.extend(elements);
    bytes
}
