"""The native CUDA device that is not there, built and loaded before torch is imported."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorlens.frameworks.torch.release import installed_release
from tensorlens.native.build import SOURCES, NativeUnavailable, Part, load

MOST_DEVICES = 64
"""As many as torch itself can number."""

_LABEL = "the stand-in for a CUDA device"
_LIBRARIES = ("libtorch_global_deps", "libc10", "libtorch_cpu")
SINCE = (2, 7, 0)
"""Before, torch makes no ``torch.Generator`` of a device that it was not built for."""
_SOURCE = SOURCES / "cuda_device" / "device.cpp"


class DeviceLibrary:
    """The functions of the loaded library."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        number, large = ctypes.c_int, ctypes.c_longlong
        self._exchange_device = self._function("exchange_device", number, number)
        self._current_device = self._function("current_device", number)
        self._device_count = self._function("device_count", number)
        self._current_stream = self._function("current_stream", large, number)
        self._set_stream = self._function("set_stream", None, number, large)
        self._set_device_count = self._function("set_device_count", None, number)
        self._take_over = self._function("take_over", None)
        self._default_generator = self._function("hand_out_default_generator", None)

    # methods, as a function of ctypes has no hash, and torch keeps tables by function

    def take_over(self) -> None:
        """Stand in for the device also where this torch, imported by now, has CUDA of its own."""
        self._take_over()

    def exchange_device(self, device: int) -> int:
        """Make a device this thread's current one, unless negative; return the one before."""
        return int(self._exchange_device(device))

    def current_device(self) -> int:
        """Return this thread's current device."""
        return int(self._current_device())

    def device_count(self) -> int:
        """Return how many devices there are."""
        return int(self._device_count())

    def set_device_count(self, count: int) -> None:
        """Let there be ``count`` devices."""
        self._set_device_count(count)

    def current_stream(self, device: int) -> int:
        """Return this thread's current stream of a device."""
        return int(self._current_stream(device))

    def set_stream(self, device: int, stream: int) -> None:
        """Make a stream this thread's current one of a device."""
        self._set_stream(device, stream)

    def hand_out_default_generator(self) -> None:
        """Let the next ``torch.Generator`` this thread makes be the device's default one."""
        self._default_generator()

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, f"tensorlens_{name}")
        function.restype, function.argtypes = result, arguments
        return function


def load_library(devices: int) -> DeviceLibrary:
    """Build and load the library; its devices are there once torch is imported.

    Raises:
        NativeUnavailable: torch is imported already or is not installed, or there is no compiler.
    """
    if "torch" in sys.modules:
        raise NativeUnavailable(f"{_LABEL} has to be loaded before torch is imported")
    if not 1 <= devices <= MOST_DEVICES:
        raise NativeUnavailable(f"{_LABEL} can be 1 to {MOST_DEVICES} devices, not {devices}")
    folder = _torch_folder()
    if installed_release() < SINCE:
        raise NativeUnavailable(
            f"a card can be stood in for from torch {SINCE[0]}.{SINCE[1]} on: pip install -U torch"
        )
    suffix = "dylib" if sys.platform == "darwin" else "so"
    try:
        for name in _LIBRARIES:
            ctypes.CDLL(str(folder / "lib" / f"{name}.{suffix}"), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NativeUnavailable(f"{_LABEL} was not loaded: {error}") from None
    library = DeviceLibrary(load(device_part(folder)))
    library.set_device_count(devices)
    return library


def _torch_folder() -> Path:
    specification = importlib.util.find_spec("torch")
    if specification is None or specification.origin is None:
        raise NativeUnavailable(f"{_LABEL} was not built: torch is not installed")
    return Path(specification.origin).resolve().parent


def device_part(folder: Path) -> Part:
    """Return the part for the torch in a folder, which need not be imported."""
    configuration = _text(folder / "share" / "cmake" / "Torch" / "TorchConfig.cmake")
    standard = _stated(r"CXX_STANDARD (\d+)", configuration, "17")
    abi = _stated(r"CXX11_ABI=(\d)", configuration, "1")

    def arguments() -> Sequence[str]:
        include, libraries = folder / "include", folder / "lib"
        if not (include / "ATen" / "detail" / "CUDAHooksInterface.h").is_file():
            raise NativeUnavailable(
                f"{_LABEL} was not built: this torch has no C++ headers ({include}): "
                "install torch from its wheels"
            )
        return [
            f"-std=c++{standard}",
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            *("-isystem", str(include)),
            *(f"-L{libraries}", f"-Wl,-rpath,{libraries}"),
        ]

    def depends_on() -> tuple[Any, ...]:
        stat = (folder / "lib" / _LIBRARY_FILE).stat()
        return (_text(folder / "version.py"), configuration, stat.st_size, stat.st_mtime_ns)

    def release() -> str | None:
        version = _stated(r"__version__ = '(\d+\.\d+)\.\d+['+]", _text(folder / "version.py"), "")
        return f"torch{version}-abi{abi}" if version else None

    return Part(
        "device",
        _LABEL,
        _SOURCE,
        libraries=("-ltorch_cpu", "-lc10"),
        arguments=arguments,
        release=release,
        depends_on=depends_on,
    )


_LIBRARY_FILE = "libc10.dylib" if sys.platform == "darwin" else "libc10.so"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _stated(pattern: str, text: str, otherwise: str) -> str:
    found = re.search(pattern, text)
    return otherwise if found is None else found[1]
