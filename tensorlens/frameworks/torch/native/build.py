"""The native parts that are compiled against the headers of the installed torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tensorlens.native.build import SOURCES, NativeUnavailable, Part


def _folder() -> Path:
    return Path(torch.__file__).resolve().parent


def _libc10() -> Path:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return _folder() / "lib" / f"libc10.{suffix}"


def _cxx11_abi() -> int:
    return int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))


def _standard() -> str:
    """Return the ``-std=`` that this torch's headers ask for."""
    match = re.search(r"C\+\+ Version: (\d{4})", torch.__config__.show())
    return "c++20" if match is not None and int(match[1]) >= 2020 else "c++17"


def _depends_on() -> tuple[Any, ...]:
    stat = _libc10().stat()
    return (
        torch.__version__,
        torch.version.git_version,
        _cxx11_abi(),
        (stat.st_size, stat.st_mtime_ns),
    )


def _release() -> str | None:
    """Return what a shipped binary must be made for; the headers of a minor release are one."""
    published = re.match(r"(\d+\.\d+)\.\d+(\+|$)", torch.__version__)
    return None if published is None else f"torch{published[1]}-abi{_cxx11_abi()}"


def _part(name: str, label: str, *libraries: str) -> Part:
    def arguments() -> Sequence[str]:
        include, library = _folder() / "include", _folder() / "lib"
        if not (include / "c10" / "core" / "Allocator.h").is_file():
            raise NativeUnavailable(
                f"{label} was not built: this torch has no C++ headers ({include}): "
                "install torch from its wheels"
            )
        return [
            f"-std={_standard()}",
            f"-D_GLIBCXX_USE_CXX11_ABI={_cxx11_abi()}",
            *("-isystem", str(include)),
            *(f"-L{library}", f"-Wl,-rpath,{library}"),
        ]

    source = SOURCES / "torch" / f"{name}.cpp"
    return Part(
        name,
        label,
        source,
        libraries=libraries,
        arguments=arguments,
        release=_release,
        depends_on=_depends_on,
    )


COUNTER = _part("counter", "the native CPU counter", "-lc10")
TENSORS = _part("tensors", "the native tensor reader", "-lc10")
OPS = _part("ops", "the native recorder of operators", "-ltorch_cpu", "-lc10")
