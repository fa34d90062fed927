"""Counters of JAX's memory: by live arrays on the host, by ``memory_stats()`` elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorlens.errors import DeviceError
from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.jax import runtime
from tensorlens.frameworks.jax.buffers import host_bytes
from tensorlens.frameworks.jax.runtime import accelerators, clients, spelled
from tensorlens.frameworks.process import forced_source, process_counter, resident_reader

_RISES = "JAX keeps one peak for the whole process: it is known for what raised it"
_NO_POOL = "JAX does not tell what its allocator holds of this device"
_NO_FIGURES = "JAX keeps no figures of this device"


class HostCounter:
    """The buffers of all live arrays on the CPU, each once.

    What XLA takes while a computation runs is not in it. A read takes about 1 us an array.
    """

    device = "cpu"
    source = "live arrays of JAX"
    precision = "exact bytes"
    missing: Mapping[str, str] = {"peak": "JAX tells no peak of what it has on the CPU"}

    def __init__(self) -> None:
        self._resident = resident_reader()

    def reader(self) -> Reader:
        """Return a function that gives ``(bytes, UNKNOWN, resident set)``."""
        resident = self._resident

        def read() -> tuple[int, int, int]:
            return host_bytes(), UNKNOWN, resident()

        return read


class DeviceCounter:
    """What XLA's allocator of an accelerator has handed out, by ``device.memory_stats()``.

    The allocator's one peak cannot be begun anew: it tells the peak of a span only where it rose.
    """

    source = "XLA allocator (memory_stats)"
    precision = "blocks of the allocator"

    def __init__(self, device: str) -> None:
        self.device = device
        self._last = UNKNOWN
        stats = memory_stats(device)
        missing = {"peak": _RISES}
        if stats is None:
            missing = dict.fromkeys(("allocated", "peak"), _NO_FIGURES)
        if stats is None or pool_of(stats) is None:
            missing["reserved"] = _NO_POOL
        self.missing: Mapping[str, str] = missing

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak where it rose, reserved)`` in bytes."""
        name = self.device

        def read() -> tuple[int, int, int]:
            stats = memory_stats(name)
            if stats is None:
                return UNKNOWN, UNKNOWN, UNKNOWN
            now, highest = stats["bytes_in_use"], stats.get("peak_bytes_in_use", UNKNOWN)
            is_known = now == highest or highest > self._last >= 0
            self._last = highest
            pool = pool_of(stats)
            return now, highest if is_known else UNKNOWN, UNKNOWN if pool is None else pool

        return read


def memory_stats(device: str) -> Mapping[str, int] | None:
    """Return what an accelerator's allocator says, in bytes; None where it keeps no figures."""
    found = accelerators().get(device)
    try:
        stats: Any = None if found is None else found.memory_stats()
    except RuntimeError:
        return None
    # a plugin may leave a field at -1
    return stats if stats and stats.get("bytes_in_use", UNKNOWN) >= 0 else None


def pool_of(stats: Mapping[str, int]) -> int | None:
    """Return the bytes that the allocator holds of the device; None where it does not tell."""
    pool = stats.get("pool_bytes", UNKNOWN)
    return pool if pool > 0 else None


def has_accelerators() -> bool:
    """Return whether there may be any: nobody knows before JAX has made its devices."""
    made = clients()
    return not made or any(client.platform != "cpu" for client in made)


def used_devices() -> Sequence[str]:
    """Return the names of the accelerators in use so far, initialising none."""
    return [*accelerators()]


def device_name(device: Any) -> str:
    """Return torch's full spelling of a device: ``gpu`` and ``gpu:0`` are ``cuda:0``.

    Raises:
        DeviceError: it surely does not exist here.
    """
    name = runtime.device_name(device) if hasattr(device, "platform") else spelled(str(device))
    if name == "cpu":
        return name
    used = used_devices()
    if clients() and name not in used:
        raise DeviceError(f"no device {name} here: JAX has {', '.join(['cpu', *used])}")
    return name


_HOST = HostCounter()
_devices: dict[str, DeviceCounter] = {}


def cpu_counter() -> Counter:
    """Return the counter of host memory.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had.
    """
    return process_counter() if forced_source() in ("heap", "resident") else _HOST


def device_counter(device: str) -> Counter:
    """Return the counter of an accelerator.

    Raises:
        DeviceError: no such device here.
    """
    name = device_name(device)
    if name not in used_devices():
        raise DeviceError(f"JAX has no accelerator {name} here")
    return _devices.setdefault(name, DeviceCounter(name))
