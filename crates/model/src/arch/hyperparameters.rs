//! Reads an architecture's numbers from the metadata, with bounds, so that no later size can overflow.

use kernels::{Gate, RopeLayout};

use super::{Blueprint, Experts, FeedForward, Layer, Rope, RopeScaling, Routing};
use crate::{Gguf, ModelError};

/// No model comes near this in any one dimension; with it no product of two sizes overflows.
const LARGEST: u64 = 1 << 24;

/// The metadata of one file under the prefix of its architecture.
pub(super) struct Hyperparameters<'a> {
    file: &'a Gguf,
    architecture: &'a str,
}

impl<'a> Hyperparameters<'a> {
    pub(super) fn new(file: &'a Gguf, architecture: &'a str) -> Self {
        Self { file, architecture }
    }

    /// Assembles the blueprint from what all architectures share.
    pub(super) fn blueprint(
        &self,
        embedding_scale: f32,
        ropes: Vec<Rope>,
        layers: Vec<Layer>,
    ) -> Result<Blueprint, ModelError> {
        let embedding = self.file.tensor("token_embd.weight")?;
        let [_, vocabulary] = embedding.info.shape[..] else {
            return Err(ModelError::BadTensor {
                file: self.file.metadata().file().to_owned(),
                tensor: embedding.info.name.clone(),
                problem: format!("has shape {:?}; it must have two dimensions", embedding.info.shape),
            });
        };
        Ok(Blueprint {
            architecture: self.architecture.to_owned(),
            hidden: self.hidden()?,
            vocabulary,
            context: self.get("context_length")?,
            epsilon: self.file.metadata().get_f32(&self.key("attention.layer_norm_rms_epsilon"))?,
            embedding_scale,
            ropes,
            layers,
        })
    }

    pub(super) fn layers(&self) -> Result<usize, ModelError> {
        let layers = self.get("block_count")?;
        let tensors = self.file.tensors().len();
        if layers > tensors {
            let problem = format!("is {layers}, but the file has only {tensors} tensors; it is damaged");
            return Err(self.bad("block_count", problem));
        }
        Ok(layers)
    }

    pub(super) fn hidden(&self) -> Result<usize, ModelError> {
        self.get("embedding_length")
    }

    /// Query heads, KV heads and head width of a layer.
    pub(super) fn heads(&self, layer: usize) -> Result<(usize, usize, usize), ModelError> {
        let heads = self.per_layer("attention.head_count", layer)?.unwrap_or(0);
        if heads == 0 {
            return Err(self.bad("attention.head_count", "gives a layer no heads"));
        }
        let kv_heads = self.per_layer("attention.head_count_kv", layer)?.unwrap_or(heads);
        if kv_heads == 0 || heads % kv_heads != 0 {
            let problem = format!("is {kv_heads}; it must divide the {heads} query heads");
            return Err(self.bad("attention.head_count_kv", problem));
        }
        let head_dim = match self.find("attention.key_length")? {
            Some(length) => length,
            None => self.hidden()? / heads,
        };
        let values = self.find("attention.value_length")?.unwrap_or(head_dim);
        if values != head_dim || head_dim == 0 {
            let problem = format!("is {values}; only heads whose values are as wide as their keys ({head_dim}) work");
            return Err(self.bad("attention.value_length", problem));
        }
        Ok((heads, kv_heads, head_dim))
    }

    /// A layer's feed-forward network of the usual kind, with SiLU; a mixture of experts where the model has any.
    pub(super) fn feed_forward(&self, layer: usize) -> Result<FeedForward, ModelError> {
        match self.find("expert_count")?.filter(|&count| count > 0) {
            None => Ok(FeedForward::dense(self.width(layer)?, Gate::Silu)),
            Some(count) => {
                let used = self.get("expert_used_count")?;
                if used > count {
                    return Err(self.bad("expert_used_count", format!("is {used}, but there are only {count} experts")));
                }
                let width = self.find("expert_feed_forward_length")?.map_or_else(|| self.width(layer), Ok)?;
                let experts = Some(Experts { count, used, routing: Routing::softmax() });
                Ok(FeedForward { width, gate: Gate::Silu, experts })
            }
        }
    }

    /// Width of a layer's feed-forward network.
    pub(super) fn width(&self, layer: usize) -> Result<usize, ModelError> {
        let width = self.per_layer("feed_forward_length", layer)?;
        width.ok_or_else(|| self.bad("feed_forward_length", "is missing"))
    }

    /// The sliding window, if the model has one.
    pub(super) fn window(&self) -> Result<Option<usize>, ModelError> {
        Ok(self.find("attention.sliding_window")?.filter(|&window| window > 0))
    }

    /// The position encoding that the metadata describes. `layout` is what llama.cpp's converter makes of the rows of Q and K.
    pub(super) fn rope(&self, layout: RopeLayout) -> Result<Rope, ModelError> {
        // Folders in Hugging Face's form have halves.
        let halves = self.file.metadata().find_bool(&self.key("rope.halves"))?.unwrap_or(false);
        let layout = if halves { RopeLayout::Halves } else { layout };
        let (_, _, head_dim) = self.heads(0)?;
        let dimensions = self.find("rope.dimension_count")?.unwrap_or(head_dim);
        if dimensions == 0 || dimensions > head_dim || dimensions % 2 != 0 {
            let problem = format!("is {dimensions}; it must be even and at most the head's width, {head_dim}");
            return Err(self.bad("rope.dimension_count", problem));
        }
        let base = self.find_f32("rope.freq_base")?.unwrap_or(10_000.0);
        Ok(Rope { layout, dimensions, base, scaling: self.rope_scaling()? })
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let metadata = self.file.metadata();
        // Converters write Llama 3's scaling as a tensor of factors, one per frequency.
        if self.file.find("rope_freqs.weight").is_some() {
            return Ok(RopeScaling::Factors(self.file.vector("rope_freqs.weight")?));
        }
        let factor = self.find_f32("rope.scaling.factor")?.or(self.find_f32("rope.scale_linear")?).unwrap_or(1.0);
        match metadata.find_str(&self.key("rope.scaling.type"))? {
            None | Some("none") if factor == 1.0 => Ok(RopeScaling::None),
            Some("none") => Ok(RopeScaling::None),
            None | Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.get("rope.scaling.original_context_length")?,
                attention_factor: self.find_f32("rope.scaling.attn_factor")?.unwrap_or(1.0),
                beta_fast: self.find_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.find_f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            }),
            Some(other) => {
                Err(self.bad("rope.scaling.type", format!("is `{other}`; supported are none, linear and yarn")))
            }
        }
    }

    pub(super) fn find_f32(&self, name: &str) -> Result<Option<f32>, ModelError> {
        self.file.metadata().find_f32(&self.key(name))
    }

    /// A size, if its key is there.
    pub(super) fn find(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let value = self.file.metadata().find_u64(&self.key(name))?;
        value.map(|value| self.bounded(name, value)).transpose()
    }

    fn get(&self, name: &str) -> Result<usize, ModelError> {
        let value = self.bounded(name, self.file.metadata().get_u64(&self.key(name))?)?;
        if value == 0 { Err(self.bad(name, "is 0; it must be positive")) } else { Ok(value) }
    }

    /// A size that the metadata gives once for all layers or as an array with one per layer.
    fn per_layer(&self, name: &str, layer: usize) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let metadata = self.file.metadata();
        if !matches!(metadata.find(&key), Some(crate::gguf::Value::Array(_))) {
            return self.find(name);
        }
        let values = metadata.get_array_u64(&key)?;
        let value = values.get(layer).copied();
        let value =
            value.ok_or_else(|| self.bad(name, format!("has {} entries, none for layer {layer}", values.len())));
        self.bounded(name, value?).map(Some)
    }

    fn bounded(&self, name: &str, value: u64) -> Result<usize, ModelError> {
        if value > LARGEST {
            return Err(self.bad(name, format!("is {value}; more than {LARGEST} makes no sense")));
        }
        Ok(value as usize)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn bad(&self, name: &str, problem: impl Into<String>) -> ModelError {
        self.file.metadata().bad(&self.key(name), problem)
    }
}
