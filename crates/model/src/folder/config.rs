//! `config.json` as metadata under GGUF's keys.
//!
//! Keys are those of the configuration classes of `transformers`. Version 5 of it gathers what concerns positions in
//! `rope_parameters`; before that, `rope_theta` and `rope_scaling` said the same.

use std::f64::consts::TAU;

use kernels::DType;

use super::json::Document;
use crate::ModelError;
use crate::gguf::{Metadata, Placed, Value};

/// What a model is called by `model_type`, and by GGUF.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("gemma3", "gemma3"),
    ("gemma3_text", "gemma3"),
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
];

/// The configuration of a language model.
pub(super) struct Config {
    document: Document,
    architecture: &'static str,
}

impl Config {
    /// Of the language model that `document` describes, alone or as a part.
    pub(super) fn new(document: &Document) -> Result<Self, ModelError> {
        let kind = document.text("model_type")?.ok_or_else(|| document.bad("model_type", "is missing"))?;
        let Some((_, architecture)) = ARCHITECTURES.iter().find(|(known, _)| *known == kind) else {
            let known: Vec<_> = ARCHITECTURES.iter().map(|(known, _)| *known).collect();
            return Err(
                document.unsupported(format!("model type `{kind}`"), format!("supported are {}", known.join(", ")))
            );
        };
        if let Some(quantization) = document.object("quantization_config")?.or(document.object("quantization")?) {
            let method = quantization.text("quant_method")?.unwrap_or("of MLX");
            return Err(document.unsupported(
                format!("the quantization {method}"),
                "supported are F32, F16 and BF16 in folders, and quantized weights in GGUF files",
            ));
        }
        // Models that see images as well describe the language model in a part of its own.
        let text = document.object("text_config")?.unwrap_or_else(|| document.clone());
        Ok(Self { document: text, architecture })
    }

    /// GGUF's name of the architecture.
    pub(super) fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Whether the embedding is the output matrix as well.
    pub(super) fn ties_embeddings(&self) -> Result<bool, ModelError> {
        // Gemma's configuration leaves out what all Gemmas do.
        Ok(self.document.flag("tie_word_embeddings")?.unwrap_or(self.architecture == "gemma3"))
    }

    /// Adds what it says to the metadata.
    pub(super) fn describe(&self, metadata: &mut Metadata) -> Result<(), ModelError> {
        self.require_uniform_layers()?;
        metadata.insert("general.architecture".to_owned(), Value::Str(self.architecture.into()));
        let mut add = |key: &str, value: Value| metadata.insert(format!("{}.{key}", self.architecture), value);
        for (name, key) in [
            ("num_hidden_layers", "block_count"),
            ("hidden_size", "embedding_length"),
            ("intermediate_size", "feed_forward_length"),
            ("num_attention_heads", "attention.head_count"),
            ("max_position_embeddings", "context_length"),
        ] {
            let value = self.document.size(name)?.ok_or_else(|| self.document.bad(name, "is missing"))?;
            add(key, Value::U64(value));
        }
        for (name, key) in [
            ("num_key_value_heads", "attention.head_count_kv"),
            ("head_dim", "attention.key_length"),
            ("head_dim", "attention.value_length"),
            ("sliding_window_pattern", "attention.sliding_window_pattern"),
            ("num_experts", "expert_count"),
            ("num_local_experts", "expert_count"),
            ("num_experts_per_tok", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
        ] {
            self.document.size(name)?.map(|value| add(key, Value::U64(value)));
        }
        // Qwen's configurations name a window that is not used unless they say so.
        if self.document.flag("use_sliding_window")? != Some(false) && self.architecture != "qwen2" {
            self.document.size("sliding_window")?.map(|value| add("attention.sliding_window", Value::U64(value)));
        }
        let epsilon = self.document.number("rms_norm_eps")?.unwrap_or(1e-6);
        add("attention.layer_norm_rms_epsilon", Value::F64(epsilon));
        // The converter reorders the rows of Q and K where GGUF wants pairs next to each other; here they lie as they did.
        add("rope.halves", Value::Bool(true));
        let rope = self.rope()?;
        add("rope.freq_base", Value::F64(rope.base));
        rope.local_base.map(|base| add("rope.freq_base_swa", Value::F64(base)));
        match rope.scaling {
            Scaling::None | Scaling::Llama3 { .. } => {}
            Scaling::Linear { factor } => {
                add("rope.scaling.type", Value::Str("linear".into()));
                add("rope.scaling.factor", Value::F64(factor));
            }
            Scaling::Yarn { factor, original, attention, beta_fast, beta_slow } => {
                add("rope.scaling.type", Value::Str("yarn".into()));
                add("rope.scaling.factor", Value::F64(factor));
                add("rope.scaling.original_context_length", Value::U64(original));
                add("rope.scaling.attn_factor", Value::F64(attention));
                add("rope.scaling.yarn_beta_fast", Value::F64(beta_fast));
                add("rope.scaling.yarn_beta_slow", Value::F64(beta_slow));
            }
        }
        Ok(())
    }

    /// Refuses mixtures of experts in some layers only, and weights of experts that do not add up to one.
    fn require_uniform_layers(&self) -> Result<(), ModelError> {
        let advice = "use a model with a mixture in each layer";
        if self.document.size("decoder_sparse_step")?.is_some_and(|step| step != 1) {
            return Err(self.document.unsupported("a mixture of experts in some layers only", advice));
        }
        if self
            .document
            .get("mlp_only_layers")
            .is_some_and(|layers| layers.as_array().is_none_or(|all| !all.is_empty()))
        {
            return Err(self.document.unsupported("a mixture of experts in some layers only", advice));
        }
        if self.architecture == "qwen3moe" && self.document.flag("norm_topk_prob")? == Some(false) {
            return Err(self
                .document
                .unsupported("norm_topk_prob = false", "use a model whose experts' weights add up to one"));
        }
        Ok(())
    }

    /// The divisors of the frequencies, where the model scales each by its own as Llama 3 does.
    pub(super) fn rope_factors(&self) -> Result<Option<Vec<f32>>, ModelError> {
        let rope = self.rope()?;
        let Scaling::Llama3 { factor, low, high, original } = rope.scaling else { return Ok(None) };
        let heads = self.document.size("num_attention_heads")?.unwrap_or(1).max(1);
        let default = self.document.size("hidden_size")?.unwrap_or(0) / heads;
        let width = self.document.size("head_dim")?.unwrap_or(default);
        if width > 1 << 16 {
            return Err(self.document.bad("head_dim", format!("is {width}; no head is that wide")));
        }
        let divisor = |pair: u64| {
            let wavelength = TAU * rope.base.powf(2.0 * pair as f64 / width as f64);
            let rotations = original / wavelength;
            if rotations > high {
                1.0
            } else if rotations < low {
                factor
            } else {
                let smooth = (rotations - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        Ok(Some((0..width / 2).map(|pair| divisor(pair) as f32).collect()))
    }

    /// A tensor under GGUF's name, as GGUF has it.
    pub(super) fn adapted(&self, name: String, mut tensor: Placed) -> Result<Placed, ModelError> {
        let is_norm = name.ends_with("norm.weight");
        tensor.info.name = name;
        if !(is_norm && self.architecture == "gemma3") {
            return Ok(tensor);
        }
        // Gemma keeps the weights of its norms less one.
        let length = tensor.info.shape.iter().product();
        let mut values = vec![0.0; length];
        kernels::dequantize(tensor.info.dtype, &tensor.data, &mut values)?;
        values.iter_mut().for_each(|value| *value += 1.0);
        let mut changed = Placed::of_floats(&tensor.info.name, values);
        changed.info.shape = tensor.info.shape;
        debug_assert_eq!(changed.info.dtype, DType::F32);
        Ok(changed)
    }

    fn rope(&self) -> Result<Rope, ModelError> {
        let document = &self.document;
        // Where layers differ, each kind has parameters of its own.
        let parameters = document.object("rope_parameters")?;
        let of_kind = |kind| parameters.as_ref().map(|all| all.object(kind)).transpose().map(Option::flatten);
        let global = of_kind("full_attention")?.or(parameters.clone());
        let local = of_kind("sliding_attention")?;
        let scaling = global.clone().or(document.object("rope_scaling")?);
        let base = global.as_ref().map(|global| global.number("rope_theta")).transpose()?.flatten();
        let base = base.or(document.number("rope_theta")?);
        let local_base = local.as_ref().map(|local| local.number("rope_theta")).transpose()?.flatten();
        let local_base = local_base.or(document.number("rope_local_base_freq")?);
        let usual = if self.architecture == "gemma3" { 1_000_000.0 } else { 10_000.0 };
        let scaling = scaling.map_or(Ok(Scaling::None), |scaling| self.scaling(&scaling))?;
        Ok(Rope { base: base.unwrap_or(usual), local_base, scaling })
    }

    fn scaling(&self, scaling: &Document) -> Result<Scaling, ModelError> {
        let needed = |key: &str| {
            let value = scaling.number(key)?;
            value
                .filter(|value| *value > 0.0)
                .ok_or_else(|| scaling.bad(key, "is missing; it must be a positive number"))
        };
        let original = || -> Result<f64, ModelError> {
            match scaling.number("original_max_position_embeddings")? {
                Some(original) => Ok(original),
                None => Ok(self.document.size("max_position_embeddings")?.unwrap_or(0) as f64),
            }
        };
        match scaling.text("rope_type")?.or(scaling.text("type")?).unwrap_or("default") {
            "default" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: needed("factor")? }),
            "llama3" => Ok(Scaling::Llama3 {
                factor: needed("factor")?,
                low: needed("low_freq_factor")?,
                high: needed("high_freq_factor")?,
                original: original()?,
            }),
            "yarn" => {
                let factor = needed("factor")?;
                let magnitude = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
                let attention = match (
                    scaling.number("attention_factor")?,
                    scaling.number("mscale")?,
                    scaling.number("mscale_all_dim")?,
                ) {
                    (Some(given), ..) => given,
                    (None, Some(one), Some(all)) => magnitude(one) / magnitude(all),
                    _ => magnitude(1.0),
                };
                Ok(Scaling::Yarn {
                    factor,
                    original: original()? as u64,
                    // GGUF's is a factor on the usual magnitude.
                    attention: attention / magnitude(1.0),
                    beta_fast: scaling.number("beta_fast")?.unwrap_or(32.0),
                    beta_slow: scaling.number("beta_slow")?.unwrap_or(1.0),
                })
            }
            other => Err(scaling.unsupported(
                format!("the position encoding `{other}`"),
                "supported are default, linear, llama3 and yarn",
            )),
        }
    }
}

/// How positions are encoded.
struct Rope {
    base: f64,
    /// That of layers with a sliding window, where it is another one.
    local_base: Option<f64>,
    scaling: Scaling,
}

enum Scaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    Yarn { factor: f64, original: u64, attention: f64, beta_fast: f64, beta_slow: f64 },
}
