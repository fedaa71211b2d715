"""Write tiny random-weight models as GGUF together with the logits that `transformers` computes for them.

For each architecture that Ropewalk runs, this script builds a model of a few layers with the `transformers` library,
gives it random weights, writes it as a GGUF file with the tensor names, layouts and metadata that llama.cpp's converter
gives such a model, and records float32 logits and a greedy continuation. README.md describes the files.
"""

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from byte_level import byte_level_vocabulary

HERE = Path(__file__).parent
PROMPT_LENGTHS = [5, 20, 70]
GREEDY_TOKENS = 48
CONTEXT_LENGTH = 4096

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
END_OF_TEXT, TURN_START, TURN_END = 0, 1, 2
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Pairs that are merged, most important first. Each half is a byte token or the outcome of an earlier pair.
MERGES = (
    "Ġ t|h e|Ġt he|i n|Ġ a|e r|o n|r e|Ġ s|a t|e n|n d|Ġ w|o u|Ġa nd|i s|in g|Ġ o|Ġo f|Ġt o|Ġ i|e s|o r|l l|Ġ b|Ġ c|Ċ Ċ|Ġ Ġ|ĠĠ ĠĠ"
).split("|")
VOCABULARY = SPECIAL_TOKENS + byte_level_vocabulary(MERGES)


@dataclass
class TinyModel:
    """One model: how `transformers` builds it, and what its GGUF file is like."""

    name: str
    architecture: str  # general.architecture
    model_class: type
    config: transformers.PreTrainedConfig
    seed: int  # chosen such that the greedy text varies, holds no end token and never turns on a near tie
    interleaved_rope: bool = False  # Q and K rows are reordered, as the converter does for `llama`
    norm_offset: float = 0.0  # gemma3 stores its norm weights minus one; GGUF holds the whole weight
    embedding_deviation: float = 0.5
    query_key_norm: float = 2.0  # mean weight of the Q and K norms; 1 would leave attention almost uniform
    f16_suffixes: tuple[str, ...] = ()  # matrices kept as F16, to spare room
    rope_frequencies: bool = False  # writes rope_freqs.weight, as the converter does for Llama 3
    metadata: dict[str, int | float] = field(default_factory=dict)  # keys beyond those that all models carry


def shape(hidden: int, feed_forward: int, heads: int, kv_heads: int, head_dim: int, layers: int = 3) -> dict:
    """Configuration values that all architectures have in common."""
    return dict(
        vocab_size=len(VOCABULARY),
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=TURN_START,
        eos_token_id=TURN_END,
        pad_token_id=None,
        attn_implementation="eager",
    )


def with_heads(config: transformers.PreTrainedConfig, heads: int) -> transformers.PreTrainedConfig:
    """Set the head count after the fact: the constructor insists on a divisor of the hidden size, the model does not."""
    config.num_attention_heads = heads
    return config


def rope(theta: float, **scaling) -> dict:
    return dict(rope_type=scaling.pop("rope_type", "default"), rope_theta=theta, **scaling)


MATRICES = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
FEED_FORWARD = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")

# Shapes are awkward on purpose: odd head counts, head sizes that are not hidden / heads, widths that are no multiple
# of 32 (except in tiny-llama, whose quantized variants need it).
MODELS = [
    TinyModel(
        "tiny-llama",
        "llama",
        transformers.LlamaForCausalLM,
        with_heads(
            transformers.LlamaConfig(
                **shape(64, 96, 1, 3, 32), tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters=rope(100_000.0)
            ),
            heads=9,
        ),
        interleaved_rope=True,
        f16_suffixes=MATRICES + FEED_FORWARD,
        seed=5,
    ),
    TinyModel(
        "tiny-llama3",
        "llama",
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **shape(48, 64, 6, 2, 16),
            tie_word_embeddings=False,
            rms_norm_eps=1e-5,
            rope_parameters=rope(
                10_000.0,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        interleaved_rope=True,
        rope_frequencies=True,
        seed=10,
    ),
    TinyModel(
        "tiny-mistral",
        "llama",
        transformers.MistralForCausalLM,
        transformers.MistralConfig(
            **shape(40, 72, 8, 2, 16),
            tie_word_embeddings=False,
            sliding_window=None,
            rms_norm_eps=1e-5,
            rope_parameters=rope(1_000_000.0),
        ),
        interleaved_rope=True,
        seed=6,
    ),
    TinyModel(
        "tiny-qwen2",
        "qwen2",
        transformers.Qwen2ForCausalLM,
        transformers.Qwen2Config(
            **shape(56, 80, 7, 1, 8), tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=rope(1_000_000.0)
        ),
        seed=5,
    ),
    TinyModel(
        "tiny-qwen3",
        "qwen3",
        transformers.Qwen3ForCausalLM,
        transformers.Qwen3Config(
            **shape(48, 64, 6, 3, 16), tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=rope(1_000_000.0)
        ),
        seed=4,
    ),
    TinyModel(
        "tiny-qwen3moe",
        "qwen3moe",
        transformers.Qwen3MoeForCausalLM,
        transformers.Qwen3MoeConfig(
            **shape(64, 96, 4, 2, 16, layers=2),
            moe_intermediate_size=64,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            tie_word_embeddings=True,
            rms_norm_eps=1e-6,
            rope_parameters=rope(1_000_000.0),
        ),
        f16_suffixes=EXPERTS,
        metadata={
            "qwen3moe.expert_count": 6,
            "qwen3moe.expert_used_count": 2,
            "qwen3moe.expert_feed_forward_length": 64,
        },
        seed=2,
    ),
    TinyModel(
        "tiny-mixtral",
        "llama",
        transformers.MixtralForCausalLM,
        transformers.MixtralConfig(
            **shape(64, 40, 4, 1, 16, layers=2),
            num_local_experts=4,
            num_experts_per_tok=3,
            tie_word_embeddings=False,
            sliding_window=None,
            rms_norm_eps=1e-5,
            rope_parameters=rope(1_000_000.0),
        ),
        interleaved_rope=True,
        f16_suffixes=EXPERTS,
        metadata={"llama.expert_count": 4, "llama.expert_used_count": 3},
        seed=45,
    ),
    TinyModel(
        "tiny-gemma3",
        "gemma3",
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig(
            **shape(40, 56, 5, 1, 16, layers=7),
            query_pre_attn_scalar=16,
            sliding_window=16,
            rms_norm_eps=1e-6,
            rope_parameters=dict(full_attention=rope(1_000_000.0), sliding_attention=rope(10_000.0)),
        ),
        norm_offset=1.0,
        embedding_deviation=0.1,
        f16_suffixes=FEED_FORWARD,
        metadata={"gemma3.attention.sliding_window": 16},
        seed=3,
    ),
]


def main() -> None:
    torch.set_num_threads(1)
    for spec in MODELS:
        model = random_model(spec)
        tensors = gguf_tensors(spec, model)
        write_gguf(HERE / f"{spec.name}.gguf", spec, tensors)
        write_logits(spec, model)
        if spec.name == "tiny-qwen3moe":
            q4_0 = quantized(tensors, Type.Q4_0)
            write_gguf(HERE / f"{spec.name}-q4_0.gguf", spec, q4_0, gguf.LlamaFileType.MOSTLY_Q4_0)
        if spec.name == "tiny-llama":
            q4_1 = quantized(tensors, Type.Q4_1)
            q4_0 = quantized(tensors, Type.Q4_0)
            write_gguf(HERE / f"{spec.name}-q4_1.gguf", spec, q4_1, gguf.LlamaFileType.MOSTLY_Q4_1)
            write_gguf(HERE / f"{spec.name}-q4_0.gguf", spec, q4_0, gguf.LlamaFileType.MOSTLY_Q4_0)
            parts = -(-len(q4_0) // 3)
            write_gguf(HERE / f"{spec.name}-split.gguf", spec, q4_0, gguf.LlamaFileType.MOSTLY_Q4_0, parts)


def random_values(name: str, seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Normal values that depend on nothing but the tensor's name and the model's seed."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, dtype=np.float32)


def random_model(spec: TinyModel) -> torch.nn.Module:
    """The model with weights scaled such that logits vary widely and attention is far from uniform."""
    model = spec.model_class(spec.config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = random_values(f"{spec.name}/{name}", spec.seed, tuple(parameter.shape))
            if name.endswith("embed_tokens.weight"):
                values *= spec.embedding_deviation
            elif name.endswith("norm.weight"):
                mean = spec.query_key_norm if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
                values = (mean - spec.norm_offset) + 0.2 * values
            elif name.endswith(".bias"):
                values *= 0.3
            else:
                values *= 1.5 / np.sqrt(parameter.shape[-1])
            if name.endswith(spec.f16_suffixes or ("no such tensor",)):
                values = values.astype(np.float16).astype(np.float32)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def gguf_tensors(spec: TinyModel, model: torch.nn.Module) -> list[tuple[str, np.ndarray, Type]]:
    """The model's tensors under their GGUF names, laid out as the converter does."""
    architecture = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[spec.architecture]
    names = gguf.get_tensor_name_map(architecture, spec.config.num_hidden_layers)
    tensors = []
    for name, parameter in model.named_parameters():  # leaves out lm_head where it is tied to the embedding
        values = parameter.detach().numpy()
        if spec.interleaved_rope and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = spec.config.num_attention_heads if "q_proj" in name else spec.config.num_key_value_heads
            values = interleave_rotary_halves(values, heads)
        if name.endswith("norm.weight"):
            values = values + np.float32(spec.norm_offset)
        f16 = name.endswith(spec.f16_suffixes or ("no such tensor",))
        if ".mlp.experts." in name:
            tensors += expert_tensors(name, values, f16)
            continue
        tensors.append((names.get_name(name, (".weight", ".bias")), *stored(values, f16)))
    if spec.rope_frequencies:
        scaled = model.model.rotary_emb.inv_freq.numpy()
        exponents = np.arange(0, spec.config.head_dim, 2, dtype=np.float32) / spec.config.head_dim
        plain = 1.0 / (spec.config.rope_parameters["rope_theta"] ** exponents)
        tensors.append(("rope_freqs.weight", (plain / scaled).astype(np.float32), Type.F32))
    return tensors


def expert_tensors(name: str, values: np.ndarray, f16: bool) -> list[tuple[str, np.ndarray, Type]]:
    """The matrices of all experts of a layer; the library keeps gate and up in one, GGUF does not."""
    layer = name.split(".")[2]
    parts = dict(zip(("gate", "up"), np.split(values, 2, axis=1))) if name.endswith("gate_up_proj") else dict(down=values)
    return [(f"blk.{layer}.ffn_{part}_exps.weight", *stored(matrix, f16)) for part, matrix in parts.items()]


def stored(values: np.ndarray, f16: bool) -> tuple[np.ndarray, Type]:
    return (values.astype(np.float16), Type.F16) if f16 else (values.astype(np.float32), Type.F32)


def interleave_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder each head's rows from (first half, second half) to pairs, for RoPE on neighbouring elements."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def quantized(tensors: list[tuple[str, np.ndarray, Type]], kind: Type) -> list[tuple[str, np.ndarray, Type]]:
    """Matrices as `kind`, the embedding as Q8_0 and norms as F32: the mixture that llama.cpp's quantizer makes."""
    out = []
    for name, values, stored_as in tensors:
        if values.ndim >= 2 and "ffn_gate_inp" not in name:
            stored_as = Type.Q8_0 if name == "token_embd.weight" else kind
            values = gguf.quants.quantize(values.astype(np.float32), stored_as)
        out.append((name, values, stored_as))
    return out


def write_gguf(
    path: Path,
    spec: TinyModel,
    tensors: list[tuple[str, np.ndarray, Type]],
    file_type: gguf.LlamaFileType | None = None,
    split_max_tensors: int = 0,
) -> None:
    writer = gguf.GGUFWriter(path, spec.architecture, split_max_tensors=split_max_tensors)
    add_metadata(writer, spec)
    if file_type is None:
        file_type = gguf.LlamaFileType.MOSTLY_F16 if spec.f16_suffixes else gguf.LlamaFileType.ALL_F32
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer)
    for name, values, stored_as in tensors:
        writer.add_tensor(name, values, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, spec: TinyModel) -> None:
    config = spec.config
    rope_parameters = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(spec.name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope_parameters["rope_theta"])
    # Qwen2 has no head size of its own; its converter writes none, and readers take hidden / heads.
    if spec.architecture != "qwen2":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if spec.architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    for key, value in spec.metadata.items():
        writer.add_uint32(key, value)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    normal = len(VOCABULARY) - len(SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS) + [gguf.TokenType.NORMAL] * normal)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TURN_START)
    writer.add_eos_token_id(TURN_END)
    writer.add_unk_token_id(END_OF_TEXT)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_logits(spec: TinyModel, model: torch.nn.Module) -> None:
    """NAME.logits.bin: little-endian f32 rows; NAME.json: which prompt and position each row belongs to."""
    rows, prompts = [], []
    for length in PROMPT_LENGTHS:
        low, high = len(SPECIAL_TOKENS), len(VOCABULARY)
        tokens = np.random.default_rng([17, length]).integers(low, high, length).tolist()
        positions = list(range(length)) if length == min(PROMPT_LENGTHS) else [length - 1]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].numpy()
        prompts.append(dict(tokens=tokens, positions=positions, first_row=len(rows)))
        rows.extend(logits[positions])
    np.stack(rows).astype("<f4").tofile(HERE / f"{spec.name}.logits.bin")
    index = dict(
        model=f"{spec.name}.gguf",
        logits=f"{spec.name}.logits.bin",
        vocabulary=len(VOCABULARY),
        rows=len(rows),
        prompts=prompts,
        greedy=greedy_continuation(model, prompts[1]["tokens"]),
    )
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in index.items()]
    (HERE / f"{spec.name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def greedy_continuation(model: torch.nn.Module, prompt: list[int]) -> dict:
    """The most likely token, time and again; `smallest_margin` is the least lead that any of them had."""
    tokens, margins = list(prompt), []
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            tokens.append(best.indices[0].item())
            margins.append((best.values[0] - best.values[1]).item())
    return dict(prompt=prompt, tokens=tokens[len(prompt) :], smallest_margin=round(min(margins), 4))


if __name__ == "__main__":
    main()
