"""Where llama.cpp comes from: the tools on this machine, or else a build of what a Python package carries."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# The package whose source distribution carries llama.cpp as a whole.
PACKAGE = "llama-cpp-python"
TOOLS = ["llama-bench", "llama-batched-bench", "llama-completion", "llama-cli"]


def find(folder, cache):
    """The paths of llama.cpp's tools by name, from `folder`, the search path, or a build in `cache`."""
    built = cache / "llama.cpp"
    places = [folder] if folder else [*map(Path, os.environ["PATH"].split(os.pathsep)), built / "build/bin"]
    tools = tools_in(places)
    if "llama-bench" not in tools and not folder:
        build(built)
        tools = tools_in([built / "build/bin"])
    if "llama-bench" not in tools:
        sys.exit(f"there is no llama-bench in {folder or built}")
    return tools


def tools_in(places):
    """The tools of the first place that has llama-bench: tools of several versions must not be mixed."""
    place = next((place for place in places if (place / "llama-bench").exists()), None)
    return {name: place / name for name in TOOLS if place and (place / name).exists()}


def build(folder):
    """Builds llama.cpp for this machine's processor, which takes some 20 minutes on two cores."""
    print(f"building llama.cpp in {folder}, which takes a while; --llama-folder names tools that exist", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    environment = dict(os.environ)
    if not shutil.which("cmake"):
        subprocess.run([*pip, "install", "--quiet", "--target", folder / "tools", "cmake"], check=True)
        environment["PATH"] = f"{folder / 'tools/bin'}{os.pathsep}{environment['PATH']}"
        environment["PYTHONPATH"] = str(folder / "tools")
    subprocess.run([*pip, "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", folder, PACKAGE], check=True)
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    configure = ["cmake", "-S", source, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                 "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                 "-DLLAMA_BUILD_SERVER=OFF"]
    subprocess.run(configure, env=environment, check=True)
    make = ["cmake", "--build", folder / "build", "--parallel", str(os.cpu_count()), "--target"]
    for tool in TOOLS:
        # Not every version has all of them.
        subprocess.run([*make, tool], env=environment, check=tool == "llama-bench")
