"""Write tiny tokenizers of every kind as GGUF vocabularies, with the ids that Hugging Face's tokenizers give.

Byte-level BPE with each pre-tokenizer, SentencePiece-style BPE (Llama 2 and Gemma) and unigram (T5). The merges of
the byte-level family are trained without any pre-tokenizer: they reach across words, digits and line ends, so that a
text that is cut in the wrong place comes out as other ids. README.md describes the files.
"""

import io
import json
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import sentencepiece
from gguf import TokenType
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from awkward_strings import AWKWARD_STRINGS
from byte_level import byte_characters
from corpus import corpus, lines

HERE = Path(__file__).parent


# ---- Byte-level BPE ----

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD = r"[^\r\n\p{L}\p{N}]?"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}"
TEKKEN = rf"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"
GPT4O = (
    rf"{WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + TAIL
)
# The letters with case, as deepseek-llm spells them out; by code point, as some would not survive normalization.
CASED_RANGES = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C
    38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
    1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
    1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
    2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B
    2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
    FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
    1E900-1E943
"""
CASED_LETTERS = "".join("-".join(chr(int(end, 16)) for end in pair.split("-")) for pair in CASED_RANGES.split())


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def byte_level(*before: pre_tokenizers.PreTokenizer, gpt2_regex: bool = False) -> pre_tokenizers.PreTokenizer:
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_regex)
    return pre_tokenizers.Sequence([*before, last])


@dataclass
class ByteLevelTokenizer:
    """A byte-level BPE tokenizer as a family of models configures it."""

    name: str  # tokenizer.ggml.pre
    pre_tokenizer: pre_tokenizers.PreTokenizer
    special: list[str]  # control tokens
    bos: str
    eos: str
    add_bos: bool = False
    normalizer: normalizers.Normalizer | None = None
    ignore_merges: bool = False  # a piece that is a token is taken whole, whether or not merges lead to it
    whole_words: list[str] = field(default_factory=list)  # tokens that no merge leads to
    user_defined: list[str] = field(default_factory=list)  # matched in any text, yet no control tokens


CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
BYTE_LEVEL_TOKENIZERS = [
    ByteLevelTokenizer("gpt-2", byte_level(gpt2_regex=True), ["<|endoftext|>"], "<|endoftext|>", "<|endoftext|>"),
    ByteLevelTokenizer(
        "smollm",
        byte_level(pre_tokenizers.Digits(individual_digits=True), gpt2_regex=True),
        CHATML,
        "<|im_start|>",
        "<|im_end|>",
    ),
    ByteLevelTokenizer(
        "llama-bpe",
        byte_level(split(LLAMA3)),
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|begin_of_text|>",
        "<|eot_id|>",
        add_bos=True,
        ignore_merges=True,
        whole_words=["Ropewalk", "Ġstraightforward", "straightforwardly", "Ġunreachable"],
    ),
    ByteLevelTokenizer(
        "qwen2",
        byte_level(split(QWEN2)),
        CHATML,
        "<|endoftext|>",
        "<|im_end|>",
        normalizer=normalizers.NFC(),
        user_defined=["<tool_call>", "</tool_call>", "<think>", "</think>"],
    ),
    ByteLevelTokenizer(
        "deepseek-llm",
        byte_level(
            split("[\r\n]"),
            split(rf"\s?[{CASED_LETTERS}]+"),
            split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            split(r"\s+$"),
            split("[一-龥ࠀ-一가-퟿]+"),
            pre_tokenizers.Digits(individual_digits=True),
        ),
        DEEPSEEK,
        *DEEPSEEK,
        add_bos=True,
    ),
    ByteLevelTokenizer(
        "deepseek-v3",
        byte_level(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3)),
        [*DEEPSEEK, "<｜User｜>", "<｜Assistant｜>"],
        *DEEPSEEK,
        add_bos=True,
    ),
    ByteLevelTokenizer(
        "gpt-4o",
        byte_level(split(GPT4O)),
        ["<|startoftext|>", "<|endoftext|>", "<|start|>", "<|message|>", "<|end|>"],
        "<|startoftext|>",
        "<|endoftext|>",
    ),
    ByteLevelTokenizer(
        "tekken",
        byte_level(split(TEKKEN)),
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
        "<s>",
        "</s>",
        add_bos=True,
        ignore_merges=True,
    ),
]


def byte_level_merges() -> list[tuple[str, str]]:
    """Merges learnt from whole lines, line ends included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator([line + "\n" for line in corpus().split("\n")] + [corpus()], trainer)
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def make_byte_level(spec: ByteLevelTokenizer, merges: list[tuple[str, str]]) -> None:
    specials = spec.special + spec.user_defined
    normal = byte_characters() + [left + right for left, right in merges] + spec.whole_words
    tokens = normal + specials
    model = models.BPE(
        vocab={token: index for index, token in enumerate(normal)}, merges=merges, ignore_merges=spec.ignore_merges
    )
    tokenizer = Tokenizer(model)
    if spec.normalizer:
        tokenizer.normalizer = spec.normalizer
    tokenizer.pre_tokenizer = spec.pre_tokenizer
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in spec.special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in spec.user_defined])
    assert [tokenizer.id_to_token(index) for index in range(len(tokens))] == tokens
    frame(tokenizer, bos=spec.bos if spec.add_bos else None)

    types = [TokenType.NORMAL] * len(normal) + [TokenType.CONTROL] * len(spec.special)
    types += [TokenType.USER_DEFINED] * len(spec.user_defined)
    writer = vocabulary_writer(spec.name, "gpt2", spec.name, tokens, types)
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(tokens.index(spec.bos))
    writer.add_eos_token_id(tokens.index(spec.eos))
    writer.add_add_bos_token(spec.add_bos)
    writer.add_add_eos_token(False)
    close(writer)
    write_encodings(spec.name, tokenizer)


# ---- SentencePiece ----


def train_sentencepiece(model_type: str, **options) -> sentencepiece_model_pb2.ModelProto:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in lines() if line),
        model_writer=model,
        model_type=model_type,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def sentencepiece_merges(pieces: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """The merges that lead to each piece, best score first, as `transformers` derives them."""
    index = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        halves = [pair for pair in halves if pair[0] in index and pair[1] in index]
        merges += [(score, pair) for pair in sorted(halves, key=lambda pair: (index[pair[0]], index[pair[1]]))]
    merges.sort(key=lambda merge: -merge[0])
    return [pair for _, pair in merges]


def make_sentencepiece_bpe(name: str, proto, special: list[str], add_space_prefix: bool) -> None:
    """A SentencePiece BPE model the way Llama 2's (with a space put first) or Gemma's tokenizer.json states it."""
    tokens = [piece.piece for piece in proto.pieces]
    normal = [(piece.piece, piece.score) for piece in proto.pieces if piece.type == TokenType.NORMAL]
    user_defined = [piece.piece for piece in proto.pieces if piece.type == TokenType.USER_DEFINED]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=sentencepiece_merges(normal),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if add_space_prefix else replace
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    bos, eos = ("<bos>", "<eos>") if "<bos>" in tokens else ("<s>", "</s>")
    frame(tokenizer, bos=bos)

    types = [TokenType.CONTROL if piece.piece in special and piece.type != 2 else piece.type for piece in proto.pieces]
    writer = vocabulary_writer(name, "llama", "default", tokens, types)
    writer.add_token_scores([piece.score for piece in proto.pieces])
    writer.add_bos_token_id(tokens.index(bos))
    writer.add_eos_token_id(tokens.index(eos))
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(add_space_prefix)
    close(writer)
    write_encodings(name, tokenizer, proto)


def make_unigram(name: str, proto, extra: list[str]) -> None:
    """A unigram model the way T5's tokenizer.json states it."""
    pieces = [(piece.piece, piece.score) for piece in proto.pieces] + [(token, 0.0) for token in extra]
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ["<pad>", "</s>", "<unk>"]])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in extra])
    frame(tokenizer, eos="</s>")

    types = [piece.type for piece in proto.pieces] + [TokenType.USER_DEFINED] * len(extra)
    writer = vocabulary_writer(name, "t5", "default", [piece for piece, _ in pieces], types)
    writer.add_token_scores([piece.score for piece in proto.pieces] + [-1000.0] * len(extra))
    writer.add_eos_token_id(tokenizer.token_to_id("</s>"))
    writer.add_unk_token_id(tokenizer.token_to_id("<unk>"))
    writer.add_pad_token_id(tokenizer.token_to_id("<pad>"))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(proto.normalizer_spec.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(proto.normalizer_spec.remove_extra_whitespaces)
    writer.add_precompiled_charsmap(charsmap)
    close(writer)
    write_encodings(name, tokenizer, proto)


def normalization_rules() -> str:
    """A small cousin of SentencePiece's `nmt_nfkc`, whose own table would fill 240 KB.

    White space becomes a space, control characters and zero-width marks vanish, and the compatibility characters of a
    few ranges as well as pairs of a Latin letter and an accent are composed. One rule a line: hexadecimal code points
    of the source, a tab, those of the target.
    """
    rules = {}
    for code in [*range(0x21, 0x250), *range(0x2000, 0x2200), *range(0x2460, 0x2480), *range(0x3300, 0x3400)]:
        rules[chr(code)] = unicodedata.normalize("NFKC", chr(code))
    for code in [*range(0xFB00, 0xFB07), *range(0xFF01, 0xFFEF)]:
        rules[chr(code)] = unicodedata.normalize("NFKC", chr(code))
    for letter in "aceinouyzACEINOUYZ":
        for accent in map(chr, range(0x300, 0x329)):
            rules[letter + accent] = unicodedata.normalize("NFKC", letter + accent)
    for code in [*range(0x09, 0x0E), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]:
        rules[chr(code)] = " "
    for code in [*range(0x01, 0x09), *range(0x0E, 0x20), 0x7F, *range(0x80, 0x85), *range(0x86, 0xA0), 0xAD]:
        rules[chr(code)] = ""
    for code in [0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, 0xFEFF]:
        rules[chr(code)] = ""

    def hexadecimal(text: str) -> str:
        return " ".join(f"{ord(character):X}" for character in text)

    changed = {source: target for source, target in rules.items() if source != target}
    return "".join(f"{hexadecimal(source)}\t{hexadecimal(target)}\n" for source, target in sorted(changed.items()))


# ---- Output ----


def frame(tokenizer: Tokenizer, bos: str | None = None, eos: str | None = None) -> None:
    """Make the tokenizer add these tokens when it is asked for special tokens."""
    template = [*filter(None, [bos]), "$A", *filter(None, [eos])]
    tokens = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token]
    tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(template), special_tokens=tokens)


def vocabulary_writer(name: str, model: str, pre: str, tokens: list[str], types: list[int]) -> gguf.GGUFWriter:
    """A GGUF file without tensors; the sizes are there for readers that insist on an architecture's keys."""
    writer = gguf.GGUFWriter(HERE / f"tokenizer-{name}.gguf", "llama")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(f"tokenizer-{name}")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in types])
    return writer


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_encodings(name: str, tokenizer: Tokenizer, proto=None) -> None:
    """One entry a string: `ids`, `ids_special` with added tokens, `ids_plain` where reading specials makes a difference.

    The entry is null where SentencePiece itself, given `proto`, disagrees on plain text: a quirk is no example.
    """
    reference = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString()) if proto else None
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    entries = []
    for text in AWKWARD_STRINGS:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        entry = dict(ids=ids, ids_special=tokenizer.encode(text).ids)
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        if plain != ids:
            entry["ids_plain"] = reference.encode(text) if reference else plain
        if reference and reference.encode(text) != ids and not any(token in text for token in added):
            entry = None
        entries.append(json.dumps(entry, separators=(",", ":")))
    tokenizer.encode_special_tokens = False
    if not isinstance(tokenizer.model, models.Unigram):
        tokenizer.save(str(HERE / f"tokenizer-{name}.hf.json"), pretty=False)
    (HERE / f"tokenizer-{name}.json").write_text("[\n" + ",\n".join(entries) + "\n]\n")


def main() -> None:
    listing = ",\n".join(json.dumps(text) for text in AWKWARD_STRINGS)
    (HERE / "awkward-strings.json").write_text(f"[\n{listing}\n]\n")
    merges = byte_level_merges()
    for spec in BYTE_LEVEL_TOKENIZERS:
        make_byte_level(spec, merges)

    bpe = dict(byte_fallback=True, split_digits=True, normalization_rule_name="identity", character_coverage=0.98)
    whole_spaces = dict(remove_extra_whitespaces=False, allow_whitespace_only_pieces=True)
    llama = train_sentencepiece("bpe", vocab_size=800, **bpe, **whole_spaces)
    make_sentencepiece_bpe("llama-spm", llama, ["<unk>", "<s>", "</s>"], add_space_prefix=True)
    gemma = train_sentencepiece(
        "bpe",
        vocab_size=800,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=["\n", "\n\n", "\n\n\n", "\t", "\t\t", "<table>"],
        add_dummy_prefix=False,
        **bpe,
        **whole_spaces,
    )
    controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    make_sentencepiece_bpe("gemma-spm", gemma, controls, add_space_prefix=False)

    rules = HERE / "normalization-rules.tsv"
    rules.write_text(normalization_rules())
    t5 = train_sentencepiece(
        "unigram",
        vocab_size=600,
        normalization_rule_tsv=str(rules),
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        character_coverage=0.98,
    )
    rules.unlink()
    make_unigram("t5", t5, ["<extra_id_1>", "<extra_id_0>"])


if __name__ == "__main__":
    main()
