//! What a model asks of a machine: bytes to read and operations to do, whatever the program that runs it.

use kernels::{DType, KvType};
use model::{Blueprint, Gguf};

/// What one pass takes at least.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Work {
    /// Bytes of weights, keys and values to read from memory.
    pub(crate) bytes: f64,
    /// Bytes to read from a cache.
    pub(crate) cached_bytes: f64,
    /// Multiplications and additions of quantized weights, which 8-bit integers can do.
    pub(crate) integer_operations: f64,
    /// The same with floats.
    pub(crate) float_operations: f64,
}

/// The sizes of a model from which its work follows.
pub(crate) struct Sizes {
    layers: Work,
    head: Work,
    kv_bytes_per_token: f64,
    /// Of each layer: products per query and key, and how many positions a query sees.
    attention: Vec<(f64, Option<usize>)>,
}

impl Sizes {
    /// Of a model, whose KV cache holds elements of type `kind`.
    pub(crate) fn new(file: &Gguf, blueprint: &Blueprint, kind: KvType) -> Self {
        let head = if file.find("output.weight").is_some() { "output.weight" } else { "token_embd.weight" };
        let work = |is_meant: &dyn Fn(&str) -> bool| {
            let matrices = file.tensors().filter(|tensor| tensor.shape.len() == 2 && is_meant(&tensor.name));
            matrices.fold(Work::default(), |sum, tensor| {
                let operations = 2 * tensor.shape.iter().product::<usize>();
                sum.plus(&Work::product(tensor.dtype, tensor.byte_len, operations))
            })
        };
        let attention = blueprint.layers.iter().map(|layer| {
            let attention = &layer.attention;
            ((4 * attention.heads * attention.head_dim) as f64, attention.window)
        });
        Self {
            layers: work(&|name| name.starts_with("blk.")),
            head: work(&|name| name == head),
            kv_bytes_per_token: blueprint.kv_bytes_per_token(kind) as f64,
            attention: attention.collect(),
        }
    }

    /// Generating one token each for `sequences` sequences behind `depth` others.
    pub(crate) fn decode(&self, depth: f64, sequences: f64) -> Work {
        let weights = self.layers.plus(&self.head);
        let attention = self.attend(depth, 1.0);
        Work { bytes: weights.bytes + attention.bytes * sequences, ..weights.plus(&attention).times(sequences) }
    }

    /// Evaluating `tokens` tokens behind `depth` others, `chunk` at a time, with the logits of the last one.
    pub(crate) fn prefill(&self, depth: f64, tokens: f64, chunk: f64) -> Work {
        let layers = Work { bytes: self.layers.bytes * (tokens / chunk).ceil(), ..self.layers.times(tokens) };
        self.attend(depth + tokens / 2.0, tokens).plus(&layers).plus(&self.head)
    }

    /// Attention of `queries` queries that see `depth` positions on average. Keys and values are read once.
    fn attend(&self, depth: f64, queries: f64) -> Work {
        let share = 1.0 / self.attention.len().max(1) as f64;
        self.attention.iter().fold(Work::default(), |sum, (operations, window)| {
            let seen = window.map_or(depth, |window| depth.min(window as f64));
            sum.plus(&Work {
                bytes: self.kv_bytes_per_token * share * seen,
                float_operations: operations * seen * queries,
                ..Work::default()
            })
        })
    }
}

impl Work {
    /// Products with weights of some format that take `bytes` bytes, `operations` multiplications and additions in all.
    pub(crate) fn product(dtype: DType, bytes: usize, operations: usize) -> Self {
        let operations = operations as f64;
        let is_float = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let (integer_operations, float_operations) = if is_float { (0.0, operations) } else { (operations, 0.0) };
        Self { bytes: bytes as f64, integer_operations, float_operations, ..Self::default() }
    }

    fn times(&self, count: f64) -> Self {
        Self {
            bytes: self.bytes * count,
            cached_bytes: self.cached_bytes * count,
            integer_operations: self.integer_operations * count,
            float_operations: self.float_operations * count,
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            cached_bytes: self.cached_bytes + other.cached_bytes,
            integer_operations: self.integer_operations + other.integer_operations,
            float_operations: self.float_operations + other.float_operations,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_model_takes_all_its_matrices_for_a_token() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden");
        let file = Gguf::open(&golden.join("tiny-llama-q4_1.gguf")).unwrap();
        let blueprint = Blueprint::from_gguf(&file).unwrap();
        let sizes = Sizes::new(&file, &blueprint, KvType::F16);
        let (near, far) = (sizes.decode(0.0, 1.0), sizes.decode(100.0, 1.0));
        assert_eq!(near.bytes, sizes.layers.bytes + sizes.head.bytes);
        assert_eq!(far.bytes - near.bytes, 100.0 * blueprint.kv_bytes_per_token(KvType::F16) as f64);
        assert_eq!(far.integer_operations, near.integer_operations);
        // Sequences share the weights.
        let eight = sizes.decode(0.0, 8.0);
        assert_eq!((eight.bytes, eight.integer_operations), (near.bytes, 8.0 * near.integer_operations));
        // Chunks read the layers once each, and the head is needed for the last token only.
        let (one, two) = (sizes.prefill(0.0, 64.0, 64.0), sizes.prefill(0.0, 64.0, 32.0));
        assert_eq!(two.bytes - one.bytes, sizes.layers.bytes);
        assert!(one.integer_operations < 64.0 * near.integer_operations);
    }
}
