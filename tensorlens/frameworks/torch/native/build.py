"""The native parts that are compiled against the headers of the installed torch.

torch is not imported: one of them has to be loaded before it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorlens.native.build import SOURCES, NativePart, NativeUnavailable


def torch_folder(label: str) -> Path:
    """Return where torch is installed.

    Raises:
        NativeUnavailable: it is not, which is why the part with this label is not built.
    """
    specification = find_spec("torch")
    if specification is None or specification.origin is None:
        raise NativeUnavailable(f"{label} was not built: torch is not installed")
    return Path(specification.origin).resolve().parent


def torch_part(source: str, label: str, *libraries: str) -> NativePart:
    """Return a part in C++ for the installed torch.

    Args:
        source: its file below ``native``, without the suffix.
        label: its name in messages.
        libraries: those of torch that it is linked with, ``-lc10``.
    """

    def configuration() -> str:
        return _text(torch_folder(label) / "share" / "cmake" / "Torch" / "TorchConfig.cmake")

    def abi() -> str:
        return _stated(r"CXX11_ABI=(\d)", configuration(), "1")

    def arguments() -> Sequence[str]:
        include, library = torch_folder(label) / "include", torch_folder(label) / "lib"
        if not (include / "c10" / "core" / "Allocator.h").is_file():
            raise NativeUnavailable(
                f"{label} was not built: this torch has no C++ headers ({include}): "
                "install torch from its wheels"
            )
        # CXX_STANDARD until torch 2.14, then a feature that compilers are asked for
        standard = _stated(r"(?:CXX_STANDARD |cxx_std_)(\d+)", configuration(), "17")
        return [
            f"-std=c++{standard}",
            f"-D_GLIBCXX_USE_CXX11_ABI={abi()}",
            *("-isystem", str(include)),
            *(f"-L{library}", f"-Wl,-rpath,{library}"),
        ]

    def depends_on() -> tuple[Any, ...]:
        folder = torch_folder(label)
        suffix = "dylib" if sys.platform == "darwin" else "so"
        stat = (folder / "lib" / f"libc10.{suffix}").stat()
        return _text(folder / "version.py"), configuration(), stat.st_size, stat.st_mtime_ns

    def release() -> str | None:
        # the headers of a minor release are one
        version = _text(torch_folder(label) / "version.py")
        number = _stated(r"__version__ = '(\d+\.\d+)\.\d+['+]", version, "")
        return f"torch{number}-abi{abi()}" if number else None

    return NativePart(
        source.rpartition("/")[2],
        label,
        SOURCES / f"{source}.cpp",
        libraries=libraries,
        arguments=arguments,
        release=release,
        depends_on=depends_on,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _stated(pattern: str, text: str, otherwise: str) -> str:
    found = re.search(pattern, text)
    return otherwise if found is None else found[1]


COUNTER = torch_part("torch/counter", "the native CPU counter", "-lc10")
TENSORS = torch_part("torch/tensors", "the native tensor reader", "-lc10")
OPS = torch_part("torch/ops", "the native recorder of operators", "-ltorch_cpu", "-lc10")
DEVICE_BLOCKS = torch_part(
    "torch/device_blocks", "the native table of accelerators' blocks", "-ltorch_cpu", "-lc10"
)
DEVICE = torch_part("cuda_device/device", "the stand-in for a CUDA device", "-ltorch_cpu", "-lc10")
