"""Writes one golden file per tensor format: random blocks, and what the `gguf` package makes of them.

    python dequantize.py          # needs the packages gguf and numpy; rewrites the *.bin files beside this script

A file holds, little-endian: the number of values (u32), the number of block bytes (u32), the block bytes, and the
expected float32 values. `tests/dequantize.rs` compares bit for bit.

The blocks are random bytes, except that their half-precision scales are finite: among them zero, negative and subnormal
ones. A NaN's bits may differ between machines, and no real file has one.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

# Offsets within a block of its half-precision fields.
HALVES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
    Type.MXFP4: [],
}
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF]  # zeros, subnormals, the largest
VALUES = 1024


def random_blocks(kind: Type, random: np.random.Generator) -> np.ndarray:
    """Rows of block bytes, enough for `VALUES` values."""
    values, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (VALUES // values, size), dtype=np.uint8)
    for offset in HALVES[kind]:
        halves = random.normal(0, 0.02, len(blocks)).astype(np.float16).view(np.uint16)
        special = random.permutation(len(blocks))[: min(len(SPECIAL_HALVES), len(blocks) - 2)]
        halves[special] = SPECIAL_HALVES[: len(special)]
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    if kind == Type.MXFP4:
        blocks[:4, 0] = [0, 1, 2, 254]
    return blocks


def floats(kind: Type, random: np.random.Generator) -> np.ndarray:
    """The bytes of `VALUES` floats of every size, none of them NaN."""
    if kind == Type.F32:
        return (random.normal(0, 1, VALUES) * 10.0 ** random.integers(-38, 38, VALUES)).astype("<f4").view(np.uint8)
    words = random.integers(0, 1 << 16, VALUES, dtype=np.uint16)
    exponent = 0x7C00 if kind == Type.F16 else 0x7F80
    words[(words & exponent) == exponent] &= 0xFFFF ^ exponent
    return words.astype("<u2").view(np.uint8)


def main() -> None:
    for kind in [Type.F32, Type.F16, Type.BF16, *HALVES]:
        random = np.random.default_rng(int(kind))
        with np.errstate(over="ignore"):
            data = random_blocks(kind, random).reshape(-1) if kind in HALVES else floats(kind, random)
            expected = dequantize(data.reshape(1, -1), kind).astype("<f4").reshape(-1)
        assert expected.size == VALUES and not np.isnan(expected).any()
        header = np.array([expected.size, data.size], dtype="<u4")
        file = Path(__file__).parent / f"{kind.name}.bin"
        file.write_bytes(header.tobytes() + data.tobytes() + expected.tobytes())


if __name__ == "__main__":
    main()
