"""TensorFlow's devices and the counters of its accelerators; a user's own peaks stay theirs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager

from tensorlens.errors import DeviceError
from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.interpreter import reentrant_lock


def runtime() -> Any:
    """Return TensorFlow's context, or None as long as the program has run no operation."""
    made = eager.context_safe()
    return None if getattr(made, "_context_handle", None) is None else made


def is_initialized() -> bool:
    """Tell whether the program has run an operation, which is when devices are made."""
    return runtime() is not None


def devices() -> list[str]:
    """Return the full names of the local devices; none before the context is made."""
    made = runtime()
    return [] if made is None else [device.name for device in made.list_logical_devices()]


def allocated(device: str) -> int | None:
    """Return the bytes in use on an accelerator such as ``cuda:0``; None if they are not known."""
    made = runtime()
    if made is None:
        return None
    try:
        info = pywrap_tfe.TFE_GetMemoryInfo(made._context_handle, short_name(device))
    except (ValueError, RuntimeError):
        # its allocator keeps no statistics
        return None
    return int(info["current"])


_SPELLINGS = {"gpu": "cuda"}


@functools.lru_cache(maxsize=256)
def spelling(text: str) -> str:
    """Return the short name of ``/job:localhost/replica:0/task:0/device:GPU:1``: ``cuda:1``.

    All of a host's CPU devices have its memory: each is ``cpu``.
    """
    kind, _, number = text.rpartition("device:")[2].lower().lstrip("/").partition(":")
    if kind in ("", "cpu"):
        return "cpu"
    return f"{_SPELLINGS.get(kind, kind)}:{number or 0}"


_peaks_lock = reentrant_lock()
_highest: dict[str, int] = {}
"""TensorFlow's short device name to the peak since the user's last reset, without the newest."""
_info: Any = None
_reset: Any = None


def read_peak(device: str) -> tuple[int, int] | None:
    """Return the bytes in use and the peak since the previous read; None if not known.

    ``device`` is TensorFlow's short name: ``GPU:0``.
    """
    with _peaks_lock:
        _install()
        made = runtime()
        if made is None:
            return None
        try:
            info = _info(made._context_handle, device)
            _highest[device] = max(_highest.get(device, 0), int(info["peak"]))
            _reset(made._context_handle, device)
        except (ValueError, RuntimeError):
            return None
    return int(info["current"]), int(info["peak"])


def _install() -> None:
    global _info, _reset
    if _info is not None:
        return
    _info, _reset = pywrap_tfe.TFE_GetMemoryInfo, pywrap_tfe.TFE_ResetMemoryStats
    pywrap_tfe.TFE_GetMemoryInfo, pywrap_tfe.TFE_ResetMemoryStats = _users_info, _users_reset


def _users_info(handle: Any, device: str, *rest: Any) -> Any:
    info = _info(handle, device, *rest)
    with _peaks_lock:
        return {**info, "peak": max(info["peak"], _highest.get(short_name(spelling(device)), 0))}


def _users_reset(handle: Any, device: str, *rest: Any) -> Any:
    with _peaks_lock:
        _highest.pop(short_name(spelling(device)), None)
        return _reset(handle, device, *rest)


_THEIRS = {"cuda": "GPU", "tpu": "TPU"}
RESERVED = "TensorFlow does not tell what its allocator holds of the device"
"""Why ``reserved`` is unknown."""


def short_name(device: str) -> str:
    """Return TensorFlow's short name of a device: ``GPU:0`` for ``cuda:0``."""
    kind, _, number = device.partition(":")
    return f"{_THEIRS.get(kind, kind.upper())}:{number}"


def has_accelerators() -> bool:
    """Return whether this TensorFlow was built for any accelerator."""
    built: Mapping[str, Any] = tensorflow.sysconfig.get_build_info()
    keys = ("is_cuda_build", "is_rocm_build", "is_tensorrt_build")
    # a build for TPUs says nothing of them; plugged devices come with a library of their own
    return any(built.get(key) for key in keys) or bool(used_devices())


def used_devices() -> Sequence[str]:
    """Return the names of the accelerators in use so far, initialising none.

    A device of a plug-in that is none of these keeps no statistics that could be read.
    """
    found = (spelling(name) for name in devices())
    return [name for name in found if name.partition(":")[0] in _THEIRS]


def device_name(device: Any) -> str:
    """Return the name of a device as torch spells it: ``cuda:0`` for ``/GPU:0``.

    Raises:
        DeviceError: it surely does not exist here.
    """
    name = spelling(str(device))
    if name != "cpu" and name.partition(":")[0] not in _THEIRS:
        raise DeviceError(f"no device {device!r}: give cpu, cuda:0 (/GPU:0) or tpu:0")
    used = used_devices()
    if name != "cpu" and is_initialized() and name not in used:
        raise DeviceError(f"no device {name} here: there is {', '.join(['cpu', *used])}")
    return name


class DeviceCounter:
    """Counter of an accelerator's allocator: chunks, multiples of 256 bytes."""

    source = "TensorFlow BFC allocator"
    precision = "chunks of the allocator, multiples of 256 B"

    def __init__(self, device: str) -> None:
        self.device = device
        self._theirs = short_name(device)
        self.missing: Mapping[str, str] = {"reserved": RESERVED}

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, UNKNOWN)`` in bytes."""
        theirs = self._theirs

        def read() -> tuple[int, int, int]:
            found = read_peak(theirs)
            return (UNKNOWN,) * 3 if found is None else (*found, UNKNOWN)

        return read


_counter = functools.cache(DeviceCounter)


def device_counter(device: str) -> Counter:
    """Return the counter of an accelerator.

    Raises:
        DeviceError: no such device here.
    """
    name = device_name(device)
    if name == "cpu":
        raise DeviceError("cpu is no accelerator")
    return _counter(name)
