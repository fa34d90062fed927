"""Makes a CUDA device appear in a fresh process, before it imports torch."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorlens import collector
from tensorlens.frameworks.torch.release import installed_release
from tensorlens.native.build import SOURCES, NativeUnavailable, Part, load
from tensorlens.planning.card import H100, Card

if TYPE_CHECKING:
    from tensorlens.planning.torch.device.bindings import Bindings
    from tensorlens.planning.torch.tracker import Tracker

_LABEL = "the stand-in for a CUDA device"
_LIBRARIES = ("libtorch_global_deps", "libc10", "libtorch_cpu")
SINCE = (2, 7, 0)
"""Before, torch makes no ``torch.Generator`` of a device that it was not built for."""
_SOURCE = SOURCES / "cuda_device" / "device.cpp"


class DeviceLibrary:
    """The functions of the loaded library."""

    # methods, as a function of ctypes has no hash, and torch keeps tables by function

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        library.tensorlens_current_stream.restype = ctypes.c_longlong
        library.tensorlens_set_stream.argtypes = ctypes.c_int, ctypes.c_longlong

    def take_over(self) -> None:
        """Stand in for the device also where this torch, imported by now, has CUDA of its own."""
        self._library.tensorlens_take_over()

    def exchange_device(self, device: int) -> int:
        """Make a device this thread's current one, unless negative; return the one before."""
        return int(self._library.tensorlens_exchange_device(device))

    def current_device(self) -> int:
        """Return this thread's current device."""
        return int(self._library.tensorlens_current_device())

    def device_count(self) -> int:
        """Return how many devices there are."""
        return int(self._library.tensorlens_device_count())

    def current_stream(self, device: int) -> int:
        """Return this thread's current stream of a device."""
        return int(self._library.tensorlens_current_stream(device))

    def set_stream(self, device: int, stream: int) -> None:
        """Make a stream this thread's current one of a device."""
        self._library.tensorlens_set_stream(device, stream)

    def hand_out_default_generator(self) -> None:
        """Let the next ``torch.Generator`` this thread makes be the device's default one."""
        self._library.tensorlens_hand_out_default_generator()


def load_library() -> DeviceLibrary:
    """Build and load the library; its device is there once torch is imported.

    Raises:
        NativeUnavailable: torch is imported already or is not installed, or there is no compiler.
    """
    if "torch" in sys.modules:
        raise NativeUnavailable(f"{_LABEL} has to be loaded before torch is imported")
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
    library = load(device_part(folder))
    library.tensorlens_set_device_count(1)
    return DeviceLibrary(library)


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


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether tensors can be on a CUDA device that is not there."""

    is_ready: bool
    reason: str = ""
    """Why not, in one line."""


_installed: list[Bindings] = []


def prepare(card: Card = H100) -> Readiness:
    """Make a card appear to torch, which this imports, in the whole process.

    Call it in a process made for it, before anything imports torch. Where it is not ready fake
    tensors can be on the CPU only, and ``torch.cuda`` is not to be relied on.

    Args:
        card: what the program hears when it asks for its properties.
    """
    try:
        library = load_library()
    except NativeUnavailable as error:
        return Readiness(False, str(error))
    try:
        # torch and what its compiler needs are imported here
        with collector.paused():
            _install(library, card)
            place = _place_of_a_gradient()
    except Exception as error:
        # another torch may have other names for anything that is replaced here
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return Readiness(False, f"a step on fake CUDA tensors does not run here: {problem[:200]}")
    if place != "cuda:0":
        return Readiness(False, f"the gradient of a fake CUDA tensor is on {place}")
    return Readiness(True)


def measure_with(tracker: Tracker) -> None:
    """Let a run answer from now on for how much memory is in use."""
    for each in _installed:
        each.tracker = tracker


def _install(library: DeviceLibrary, card: Card) -> None:
    from tensorlens.planning.torch.device import bindings, kernels, mode

    library.take_over()
    _installed.append(bindings.install(library, card))
    mode.install()
    kernels.install()
    mode.install_on_card()


def _place_of_a_gradient() -> str:
    """Run a small step, to see that this torch does what is expected of it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = torch.nn.Linear(4, 2, device="cuda")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.randn(3, 4).to("cuda")).relu().sum().backward()
        optimizer.step()
        return str(layer.weight.grad.device)
