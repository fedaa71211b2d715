//! What a checkpoint says of itself.

use std::collections::HashMap;

use model::Gguf;

/// What callers may tell their users of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelDetails {
    /// The architecture under GGUF's name, for example `llama`.
    pub architecture: String,
    /// How many weights there are.
    pub parameters: u64,
    /// Bytes that the tensors take in the file.
    pub bytes: u64,
    /// The format that takes most of these bytes, for example `Q4_1`.
    pub quantization: String,
}

impl ModelDetails {
    /// Reads them from the records of `file`; no tensor is touched.
    pub fn from_gguf(file: &Gguf) -> Self {
        let mut bytes = HashMap::new();
        let mut parameters: u64 = 0;
        for tensor in file.tensors() {
            *bytes.entry(tensor.dtype).or_insert(0_u64) += tensor.byte_len as u64;
            parameters += tensor.shape.iter().map(|&size| size as u64).product::<u64>();
        }
        let largest = bytes.iter().max_by_key(|(_, bytes)| **bytes);
        Self {
            architecture: file.metadata().get_str("general.architecture").unwrap_or_default().to_owned(),
            parameters,
            bytes: bytes.values().sum(),
            quantization: largest.map_or_else(String::new, |(dtype, _)| dtype.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_file_tells_its_architecture_and_sizes() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/tiny-llama.gguf");
        let file = Gguf::open(&path).unwrap();
        let details = ModelDetails::from_gguf(&file);
        assert_eq!(details.architecture, "llama");
        assert_eq!(details.bytes, crate::ranks::model_bytes(&file));
        assert!(details.parameters > 0 && !details.quantization.is_empty(), "{details:?}");
    }
}
