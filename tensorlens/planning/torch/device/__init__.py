"""Makes a CUDA device appear in a fresh process, before it imports torch."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorlens.frameworks.torch.native import DEVICE, torch_folder
from tensorlens.frameworks.torch.release import installed_release
from tensorlens.guards import reason
from tensorlens.interpreter import paused_collector
from tensorlens.native.build import NativeUnavailable, load
from tensorlens.planning.card import H100, Card

if TYPE_CHECKING:
    from tensorlens.planning.torch.device.bindings import Bindings
    from tensorlens.planning.torch.tracker import Tracker


_LIBRARIES = ("libtorch_global_deps", "libc10", "libtorch_cpu")
SINCE = (2, 7, 0)
"""Before, torch makes no ``torch.Generator`` of a device that it was not built for."""


def load_library() -> ctypes.PyDLL:
    """Build and load the library; its device is there once torch is imported."""
    if "torch" in sys.modules:
        raise NativeUnavailable(f"{DEVICE.label} has to be loaded before torch is imported")
    folder = torch_folder(DEVICE.label)
    if installed_release() < SINCE:
        raise NativeUnavailable(
            f"a card can be stood in for from torch {SINCE[0]}.{SINCE[1]} on: pip install -U torch"
        )
    suffix = "dylib" if sys.platform == "darwin" else "so"
    try:
        for name in _LIBRARIES:
            ctypes.CDLL(str(folder / "lib" / f"{name}.{suffix}"), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NativeUnavailable(f"{DEVICE.label} was not loaded: {error}") from None
    library = load(DEVICE)
    library.tensorlens_current_stream.restype = ctypes.c_longlong
    library.tensorlens_set_stream.argtypes = (ctypes.c_longlong,)
    return library


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
    """
    try:
        library = load_library()
    except NativeUnavailable as error:
        return Readiness(False, str(error))
    try:
        # torch and what its compiler needs are imported here
        with paused_collector():
            _install(library, card)
            place = _place_of_a_gradient()
    except Exception as error:
        # another torch may have other names for anything that is replaced here
        problem = reason(error)[:200]
        return Readiness(False, f"a step on fake CUDA tensors does not run here: {problem}")
    if place != "cuda:0":
        return Readiness(False, f"the gradient of a fake CUDA tensor is on {place}")
    return Readiness(True)


def measure_with(tracker: Tracker) -> None:
    """Let a run answer from now on for how much memory is in use."""
    for each in _installed:
        each.tracker = tracker


def _install(library: ctypes.PyDLL, card: Card) -> None:
    from tensorlens.planning.torch.device import bindings, fake_tensors

    # also where this torch, imported by now, has CUDA of its own
    library.tensorlens_take_over()
    _installed.append(bindings.install(library, card))
    fake_tensors.install()
    fake_tensors.install_on_card()


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
