"""Builds the stand-in for a CUDA card, for the CUDA build of torch that runs this.

    python tests/gpu/stand_in/build.py FOLDER COMMAND...

It runs the command with the stand-in in place. Needs g++ and nm, and the headers of
the package ``nvidia-cuda-crt`` beside those that torch brings.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_SOURCE = Path(__file__).with_name("runtime.cpp")
_LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so", "libtorch_python.so")
_ASKED = re.compile(r" U ((?:cuda|cublas|cusparse|cusolver|curand|cufft)\w+)@")
_GIVEN = re.compile(r" T ((?:cuda|cublas|cu[A-Z])\w+)")
_NOT_MADE = re.compile(r"cudaGetError(String|Name)|cudaRegister\w+")
"""What the real runtime does without a card."""
_DRIVER = ("cuGetErrorString", "cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuGetProcAddress")


def build(folder: Path) -> Path:
    """Return the library that is to be loaded before all else; the driver's name is its own."""
    torch = _package("torch")
    headers = [f"-I{path.parent}" for path in _package("nvidia").rglob("cuda_runtime_api.h")]
    made, stubs, library = (folder / name for name in ("runtime.o", "stubs.cpp", "libcuda.so.1"))
    compiler = ("g++", "-O1", "-w", "-fPIC", *headers)
    subprocess.run([*compiler, "-c", _SOURCE, "-o", made], check=True)
    asked = set(_ASKED.findall(_symbols("-D", *(torch / "lib" / name for name in _LIBRARIES))))
    missing = {*asked, *_DRIVER} - set(_GIVEN.findall(_symbols(made)))
    names = sorted(name for name in missing if not _NOT_MADE.fullmatch(name))
    functions = "".join(f"int {name}() {{ return 0; }}\n" for name in names)
    stubs.write_text(f'extern "C" {{\n{functions}}}\n')
    shared = ("-shared", f"-Wl,-soname,{library.name}")
    subprocess.run([*compiler, *shared, stubs, made, "-o", library], check=True)
    return library


def _package(name: str) -> Path:
    specification = find_spec(name)
    assert specification is not None and specification.submodule_search_locations
    return Path(next(iter(specification.submodule_search_locations)))


def _symbols(*arguments: str | Path) -> str:
    return subprocess.run(["nm", *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Build it, and become the command."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.execvpe(sys.argv[2], sys.argv[2:], {**os.environ, "LD_PRELOAD": str(build(folder))})


if __name__ == "__main__":
    main()
