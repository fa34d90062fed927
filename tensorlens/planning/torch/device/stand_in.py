"""A CUDA device that is not there, made to appear in a fresh process before it imports torch."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING

from tensorlens.frameworks.torch.native import DEVICE, installed_release, torch_folder
from tensorlens.guards import reason
from tensorlens.interpreter import paused_collector
from tensorlens.native.build import NativeUnavailable, load
from tensorlens.planning.card import H100, Card

if TYPE_CHECKING:
    from tensorlens.planning.torch.device.bindings import Bindings
    from tensorlens.planning.torch.tracker import Tracker


_LIBRARIES = ("libtorch_global_deps", "libc10", "libtorch_cpu")
SINCE = (2, 7, 0)
"""Earlier releases make no ``torch.Generator`` of a device that they were not built for."""


def load_library() -> ctypes.PyDLL:
    """Build and load the library; its device appears once torch is imported."""
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
    library.tl_device_stream.restype = ctypes.c_longlong
    library.tl_device_set_stream.argtypes = (ctypes.c_longlong,)
    return library


_installed: list[Bindings] = []


def prepare(card: Card = H100) -> None:
    """Make a card appear to torch in the whole process, and import torch.

    Call it in a process of its own, before anything imports torch.

    Raises:
        NativeUnavailable: fake tensors can only be on the CPU, and ``torch.cuda`` is in no defined
            state.
    """
    library = load_library()
    try:
        # this imports torch and the modules of its compiler
        with paused_collector():
            from tensorlens.planning.torch.device import bindings, fake_tensors

            # also needed if this torch, imported by now, is built with CUDA
            library.tl_device_take_over()
            _installed.append(bindings.install(library, card))
            fake_tensors.patch_fake_tensors()
            fake_tensors.patch_cuda()
            place = _device_of_gradient()
    except Exception as error:
        # other releases of torch may lack the names that are patched
        problem = reason(error)[:200]
        raise NativeUnavailable(
            f"a step on fake CUDA tensors does not run here: {problem}"
        ) from error
    if place != "cuda:0":
        raise NativeUnavailable(f"the gradient of a fake CUDA tensor is on {place}")


def measure_with(tracker: Tracker) -> None:
    """Take the memory in use from a run's tracker from now on."""
    for each in _installed:
        each.tracker = tracker


def _device_of_gradient() -> str:
    """Run a small step, to check that this torch works as expected."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = torch.nn.Linear(4, 2, device="cuda")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.randn(3, 4).to("cuda")).relu().sum().backward()
        optimizer.step()
        return str(layer.weight.grad.device)
