"""Makes a CUDA device appear in a fresh process, before it imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tensorlens import collector
from tensorlens.native.build import NativeUnavailable
from tensorlens.planning.card import H100, Card
from tensorlens.planning.torch.device.library import DeviceLibrary, load_library


class Meter(Protocol):
    """Answers for the devices; each is a number, and sizes are bytes."""

    def allocated(self, device: int) -> int:
        """Return what is handed out now."""

    def peak_allocated(self, device: int) -> int:
        """Return the most that was handed out since the peak was last reset."""

    def reserved(self, device: int) -> int:
        """Return what the allocator holds now."""

    def peak_reserved(self, device: int) -> int:
        """Return the most that the allocator held since the peak was last reset."""

    def reset_peak(self, device: int) -> None:
        """Begin new peaks."""

    def empty_cache(self) -> None:
        """Note that the program gives cached memory back."""


class NoMeter:
    """Nobody measures: everything is 0."""

    def allocated(self, device: int) -> int:
        """Return 0."""
        return 0

    peak_allocated = reserved = peak_reserved = allocated

    def reset_peak(self, device: int) -> None:
        """Do nothing."""

    def empty_cache(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether tensors can be on a CUDA device that is not there."""

    is_ready: bool
    reason: str = ""
    """Why not, in one line."""


_installed: list[object] = []


def prepare(
    devices: int = 1,
    card: Card = H100,
    meter: Meter | None = None,
    warn: Callable[[str], None] | None = None,
) -> Readiness:
    """Make ``devices`` of a card appear to torch, which this imports, in the whole process.

    Call it in a process made for it, before anything imports torch. Where it is not ready fake
    tensors can be on the CPU only, and ``torch.cuda`` is not to be relied on.

    Args:
        devices: how many.
        card: what the program hears when it asks for their properties.
        meter: answers for ``torch.cuda.memory_allocated`` and its like; see :func:`measure_with`.
        warn: is given a line for each thing the program asks that cannot be simulated.
    """
    try:
        library = load_library(devices)
    except NativeUnavailable as error:
        return Readiness(False, str(error))
    try:
        # torch and what its compiler needs are imported here
        with collector.paused():
            _install(library, card, meter or NoMeter(), warn or _ignore)
            place = _place_of_a_gradient()
    except Exception as error:
        # another torch may have other names for anything that is replaced here
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return Readiness(False, f"a step on fake CUDA tensors does not run here: {problem[:200]}")
    if place != "cuda:0":
        return Readiness(False, f"the gradient of a fake CUDA tensor is on {place}")
    return Readiness(True)


def measure_with(meter: Meter) -> None:
    """Let ``meter`` answer from now on for how much memory is in use."""
    from tensorlens.planning.torch.device.bindings import Bindings

    for installed in _installed:
        if isinstance(installed, Bindings):
            installed.meter = meter


def _ignore(text: str) -> None:
    pass


def _install(library: DeviceLibrary, card: Card, meter: Meter, warn: Callable[[str], None]) -> None:
    from tensorlens.planning.torch.device import kernels, mode, toolkit
    from tensorlens.planning.torch.device.bindings import Bindings

    library.take_over()
    bindings = Bindings(library, card, meter, warn)
    bindings.install()
    toolkit.install(bindings)
    toolkit.install_streams()
    mode.install()
    kernels.install()
    kernels.install_fallback(warn)
    kernels.install_recurrent()
    mode.install_pinning()
    toolkit.install_types()
    mode.install_copies()
    _installed.append(bindings)


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
