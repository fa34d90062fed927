"""Rows of ``tensorlens doctor`` for torch: what can be measured here; starts no device."""

from __future__ import annotations

from collections.abc import Callable

from tensorlens.errors import TensorlensError
from tensorlens.frameworks.diagnosis import Finding, counter_finding, native_counter, part
from tensorlens.frameworks.torch import accelerators, cpu
from tensorlens.frameworks.torch.backends import KINDS, Backend
from tensorlens.frameworks.torch.census.scan import fallback_reason, open_scan
from tensorlens.frameworks.torch.native import COUNTER, TorchAllocator
from tensorlens.heap import why_not_native
from tensorlens.native.build import origin
from tensorlens.render.figures import counted


def diagnose() -> list[Finding]:
    """Examine the imported torch; builds the native CPU counter if it was not built yet.

    No accelerator is initialised.
    """
    open_scan()
    slow = fallback_reason() or why_not_native() or None
    return [
        *_host(),
        part("snapshots", slow, "tensors and their holders are read natively"),
        part("births", _reason(_no_births), "the line that allocates a tensor is known"),
        *map(_accelerator, KINDS),
    ]


def _host() -> list[Finding]:
    is_native = False
    try:
        counter = cpu.cpu_counter()
    except TensorlensError as error:
        host = Finding("cpu", False, str(error))
    else:
        host = counter_finding("cpu", counter)
        is_native = isinstance(counter, TorchAllocator)
    fallback = _reason(cpu.fallback_reason)
    return [host, native_counter(is_native, fallback, origin(COUNTER))]


def _reason(ask: Callable[[], str | None]) -> str | None:
    try:
        return ask()
    except TensorlensError as error:
        return str(error)


def _no_births() -> str | None:
    allocator = cpu.allocator()
    if allocator is None:
        return "the native CPU counter is not in use"
    allocator.watch_births()
    allocator.watch_births(False)
    return None


def _accelerator(kind: type[Backend]) -> Finding:
    backend = accelerators.backends.get(kind.name)
    if backend is None:
        return Finding(kind.name, False, f"not in this torch; needs {kind.build}")
    try:
        devices = backend.visible()
    except Exception:  # torch could not ask the driver
        devices = None
    if devices == 0:
        detail = "this process sees no device; check the driver and what hides devices"
        return Finding(kind.name, False, detail)
    count = "number of devices unknown until it is initialised"
    if devices is not None:
        count = counted(devices, "device")
    return counter_finding(kind.name, accelerators.DeviceCounter(backend, 0), count)
