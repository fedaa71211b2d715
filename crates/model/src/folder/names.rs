//! The names of tensors: what `transformers` calls them, and what GGUF does.

pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Names outside the layers.
const WHOLE: &[(&str, &str)] = &[
    ("model.embed_tokens.weight", EMBEDDING),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", OUTPUT),
];

/// Names within a layer, without `.weight` or `.bias`.
const LAYER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];

/// Names of the matrices of an expert. Mixtral numbers them.
const EXPERT: &[(&str, &str)] = &[
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
];

/// The names of norms around the blocks. Where blocks have norms behind them as well, the same name means another one.
const NORMS: &[(&str, &str)] = &[("post_attention_layernorm", "ffn_norm")];
const NORMS_AROUND: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// The name of a matrix of one expert. GGUF has those of all experts in one tensor; one by one they are numbered.
fn expert(part: &str) -> Option<String> {
    let rest = part.strip_prefix("mlp.experts.").or_else(|| part.strip_prefix("block_sparse_moe.experts."))?;
    let (expert, matrix) = rest.split_once('.')?;
    let expert: u32 = expert.parse().ok()?;
    let (_, name) = EXPERT.iter().find(|(known, _)| *known == matrix)?;
    Some(format!("{name}.{expert}"))
}

/// GGUF's name of a tensor, or `None` for what is not part of the language model.
pub(super) fn translated(name: &str, architecture: &str) -> Option<String> {
    // Models that see images as well keep the language model under a name of its own.
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let name = name.strip_prefix("model.language_model.").map_or(name.to_owned(), |rest| format!("model.{rest}"));
    if let Some((_, translated)) = WHOLE.iter().find(|(known, _)| *known == name) {
        return Some((*translated).to_owned());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    let norms = if architecture == "gemma3" { NORMS_AROUND } else { NORMS };
    let part = match expert(part) {
        Some(part) => part,
        None => LAYER.iter().chain(norms).find(|(known, _)| *known == part)?.1.to_owned(),
    };
    matches!(kind, "weight" | "bias").then(|| format!("blk.{layer}.{part}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_where_norms_stand() {
        let name = |name, architecture| translated(name, architecture);
        let norm = "model.layers.12.post_attention_layernorm.weight";
        assert_eq!(name(norm, "llama").as_deref(), Some("blk.12.ffn_norm.weight"));
        assert_eq!(name(norm, "gemma3").as_deref(), Some("blk.12.post_attention_norm.weight"));
        let embedding = "model.language_model.embed_tokens.weight";
        assert_eq!(name(embedding, "gemma3").as_deref(), Some(EMBEDDING));
        assert_eq!(name("language_model.model.norm.weight", "gemma3").as_deref(), Some("output_norm.weight"));
        let expert = "model.layers.3.block_sparse_moe.experts.11.w2.weight";
        assert_eq!(name(expert, "llama").as_deref(), Some("blk.3.ffn_down_exps.11.weight"));
        assert_eq!(name("model.layers.0.self_attn.k_proj.bias", "qwen2").as_deref(), Some("blk.0.attn_k.bias"));
        for other in
            ["vision_tower.model.norm.weight", "model.layers.x.mlp.up_proj.weight", "model.layers.1", "lm_head"]
        {
            assert_eq!(name(other, "llama"), None);
        }
    }
}
