"""torch's release, and native parts compiled for it: the counting CPU allocator, device levels.

torch is not imported here: the stand-in for a device must be loaded before torch is imported.
"""

from __future__ import annotations

import ctypes
import re
import sys
from array import array
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.host.allocator import NativeAllocator, start
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import SOURCES, NativePart, NativeUnavailable, declare, load

_OLDEST = (2, 6, 0)
"""The oldest release tested, and the first that tells the order of its attention kernels."""


def installed_release() -> tuple[int, int, int]:
    """Return the installed torch's release: ``(2, 13, 0)`` for ``2.13.0+cpu`` and ``2.13.0a0``.

    Does not import torch. A version without numbers, of a build from source, is newer than any
    release.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", _version())
    if match is None:
        return 999, 0, 0
    major, minor, micro = match.groups(default="0")
    return int(major), int(minor), int(micro)


def check_release() -> None:
    """Refuse a torch that is too old.

    Raises:
        UsageError: it is too old; the text says what to do.
    """
    if installed_release() < _OLDEST:
        oldest = f"{_OLDEST[0]}.{_OLDEST[1]}"
        raise UsageError(
            f"torch {_version()} is too old: tensorlens needs torch {oldest} or later: "
            f"pip install -U 'torch>={oldest}'"
        )


def version_text() -> str:
    """Return the text of torch's ``version.py``; empty if there is none. Does not import torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("version.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _version() -> str:
    module = sys.modules.get("torch")
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    return _match(r"__version__ = ['\"]([^'\"]+)", version_text(), "")


def torch_folder(label: str) -> Path:
    """Return the folder of the installed torch.

    Args:
        label: name of the part to be built, for the error's text.

    Raises:
        NativeUnavailable: torch is not installed.
    """
    specification = find_spec("torch")
    if specification is None or specification.origin is None:
        raise NativeUnavailable(f"{label} was not built: torch is not installed")
    return Path(specification.origin).resolve().parent


def torch_part(source: str, label: str, *libraries: str) -> NativePart:
    """Return a native part that is compiled against the installed torch.

    Args:
        source: its file below ``native``, without the suffix.
        label: its name in messages.
        libraries: linker options of the torch libraries that it needs: ``-lc10``.
    """

    def configuration() -> str:
        path = torch_folder(label) / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def abi() -> str:
        return _match(r"CXX11_ABI=(\d)", configuration(), "1")

    def arguments() -> Sequence[str]:
        include, library = torch_folder(label) / "include", torch_folder(label) / "lib"
        if not (include / "c10" / "core" / "Allocator.h").is_file():
            raise NativeUnavailable(
                f"{label} was not built: this torch has no C++ headers ({include}): "
                "install torch from its wheels"
            )
        # CXX_STANDARD until torch 2.14, a compile feature since
        standard = _match(r"(?:CXX_STANDARD |cxx_std_)(\d+)", configuration(), "17")
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
        return version_text(), configuration(), stat.st_size, stat.st_mtime_ns

    def release() -> str | None:
        # all releases with the same minor number have the same headers
        number = _match(r"__version__ = '(\d+\.\d+)\.\d+['+]", version_text(), "")
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


def _match(pattern: str, text: str, otherwise: str) -> str:
    found = re.search(pattern, text)
    return otherwise if found is None else found[1]


COUNTER = torch_part("torch/counter", "the native CPU counter", "-lc10")
TENSORS = torch_part("torch/tensors", "the native tensor reader", "-lc10")
OPS = torch_part("torch/ops", "the native recorder of operators", "-ltorch_cpu", "-lc10")
DEVICE_BLOCKS = torch_part(
    "torch/device_blocks", "the native table of accelerators' blocks", "-ltorch_cpu", "-lc10"
)
DEVICE = torch_part("cuda_device/device", "the stand-in for a CUDA device", "-ltorch_cpu", "-lc10")


class TorchAllocator(NativeAllocator):
    """Counts of torch's CPU allocator since :func:`install`, in exact bytes."""

    source = "torch CPU allocator"

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(library)
        self.counts_default = bool(library.tl_counts_default())
        """Whether ``UntypedStorage(n)``, ``deepcopy`` and unpickling are counted too."""
        if not self.counts_default:
            self.precision = "exact bytes, but for deepcopy and pickle"

    def adopt(self, tensors: array[int]) -> int:
        """Count the storages of tensors and of their gradients until they are freed.

        Storages of another allocator and those already counted are skipped. Returns the number
        of storages added.

        Args:
            tensors: addresses of torch's own objects (``_cdata``), of type code ``Q``; the caller
                keeps the tensors alive during the call.

        Raises:
            MemoryError: no memory is left.
        """
        function = self.library.tl_adopt
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        function.restype = ctypes.c_int64
        adopted = int(function(start(tensors), len(tensors)))
        if adopted < 0:
            raise MemoryError
        return adopted


_REFUSALS = {
    1: "the CPU allocator in place cannot be wrapped (it gives no raw deleter)",
    2: "another CPU allocator insists on its place",
}
_lock = reentrant_lock()
_installed: TorchAllocator | None = None


def install() -> tuple[TorchAllocator, bool]:
    """Install the counting CPU allocator for good; return it and whether this call installed it.

    Raises:
        NativeUnavailable: it could not be built, or torch's allocator cannot be wrapped.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return _installed, False
        library = load(COUNTER)
        refusal = int(library.tl_install())
        if refusal:
            raise NativeUnavailable(f"the native CPU counter is not in use: {_REFUSALS[refusal]}")
        _installed = TorchAllocator(library)
        return _installed, True


def level_reader(device_type: int) -> Callable[[int], tuple[int, int, int]]:
    """Return a function that reads ``(allocated, peak since the previous read, reserved)``.

    It takes the number of a device, and raises LookupError if torch cannot tell, such as for a
    lost device. The allocator tells what is allocated and reserved. Peaks are kept here, from its
    reports of single blocks, so that torch's own peaks need no reset.

    Args:
        device_type: the backend's number in ``c10/core/DeviceType.h``.

    Raises:
        NativeUnavailable: there is no native part, no library reports to it, or torch is older
            than 2.9.
    """
    library = load(DEVICE_BLOCKS)
    declare(
        library,
        {
            "tl_levels_connect": (ctypes.c_int64, ()),
            "tl_levels_read": (ctypes.c_int, (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)),
        },
    )
    if not library.tl_levels_connect():
        raise NativeUnavailable(f"{DEVICE_BLOCKS.label} cannot read levels of this torch")

    def read(index: int) -> tuple[int, int, int]:
        figures = array("q", (UNKNOWN,) * 3)
        if not library.tl_levels_read(device_type, index, figures.buffer_info()[0]):
            raise LookupError("the allocator does not tell its level")
        allocated, peak, reserved = figures
        return allocated, peak, reserved

    return read
