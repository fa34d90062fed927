"""TensorFlow's devices, and counters of its accelerators that leave a user's own peaks alone."""

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


def eager_context() -> Any:
    """Return TensorFlow's context; None until the program runs an operation."""
    context = eager.context_safe()
    return None if getattr(context, "_context_handle", None) is None else context


def is_initialized() -> bool:
    """Tell whether the program has run an operation, which makes the devices."""
    return eager_context() is not None


def devices() -> list[str]:
    """Return the full names of the local devices; none before the context is made."""
    context = eager_context()
    return [] if context is None else [each.name for each in context.list_logical_devices()]


def allocated(device: str) -> int | None:
    """Return the bytes in use on an accelerator such as ``cuda:0``; None if unknown."""
    context = eager_context()
    if context is None:
        return None
    try:
        info = pywrap_tfe.TFE_GetMemoryInfo(context._context_handle, tensorflow_device_name(device))
    except (ValueError, RuntimeError):
        # its allocator keeps no statistics
        return None
    return int(info["current"])


@functools.lru_cache(maxsize=256)
def torch_device_name(text: str) -> str:
    """Return the name ``cuda:1`` of ``/job:localhost/replica:0/task:0/device:GPU:1``.

    Each CPU device is ``cpu``, as all share the host's memory.
    """
    kind, _, number = text.rpartition("device:")[2].lower().lstrip("/").partition(":")
    if kind in ("", "cpu"):
        return "cpu"
    return f"{'cuda' if kind == 'gpu' else kind}:{number or 0}"


_peaks_lock = reentrant_lock()
_highest: dict[str, int] = {}
"""TensorFlow's device name to the peak from the user's last reset to our last read."""
_original_info: Any = None
_original_reset: Any = None


_UNREAD = (UNKNOWN,) * 3


def _read_peak(device: str) -> tuple[int, int, int]:
    """Return the bytes in use, the peak since the previous read and ``UNKNOWN``.

    ``device`` is TensorFlow's name: ``GPU:0``.
    """
    with _peaks_lock:
        _install()
        context = eager_context()
        if context is None:
            return _UNREAD
        try:
            info = _original_info(context._context_handle, device)
            _highest[device] = max(_highest.get(device, 0), int(info["peak"]))
            _original_reset(context._context_handle, device)
        except (ValueError, RuntimeError):
            return _UNREAD
    return int(info["current"]), int(info["peak"]), UNKNOWN


def _install() -> None:
    global _original_info, _original_reset
    if _original_info is not None:
        return
    _original_info, _original_reset = pywrap_tfe.TFE_GetMemoryInfo, pywrap_tfe.TFE_ResetMemoryStats
    pywrap_tfe.TFE_GetMemoryInfo, pywrap_tfe.TFE_ResetMemoryStats = _users_info, _users_reset


def _users_info(handle: Any, device: str, *rest: Any) -> Any:
    info = _original_info(handle, device, *rest)
    with _peaks_lock:
        return {**info, "peak": max(info["peak"], _highest.get(_highest_key(device), 0))}


def _users_reset(handle: Any, device: str, *rest: Any) -> Any:
    with _peaks_lock:
        _highest.pop(_highest_key(device), None)
        return _original_reset(handle, device, *rest)


def _highest_key(device: str) -> str:
    return tensorflow_device_name(torch_device_name(device))


_TF_KINDS = {"cuda": "GPU", "tpu": "TPU"}
RESERVED = "TensorFlow does not tell what its allocator holds of the device"
"""Why ``reserved`` is unknown."""


def tensorflow_device_name(device: str) -> str:
    """Return TensorFlow's short name of a device: ``GPU:0`` for ``cuda:0``."""
    kind, _, number = device.partition(":")
    return f"{_TF_KINDS.get(kind, kind.upper())}:{number}"


def has_accelerators() -> bool:
    """Tell whether this TensorFlow was built for any accelerator."""
    built: Mapping[str, Any] = tensorflow.sysconfig.get_build_info()
    keys = ("is_cuda_build", "is_rocm_build", "is_tensorrt_build")
    # the build info does not tell of TPUs or of plug-ins, which have libraries of their own
    return any(built.get(key) for key in keys) or bool(used_devices())


def used_devices() -> Sequence[str]:
    """Return the names of the accelerators in use so far, initialising none.

    Other devices, of plug-ins, keep no statistics that could be read.
    """
    found = map(torch_device_name, devices())
    return [name for name in found if name.partition(":")[0] in _TF_KINDS]


def device_name(device: Any) -> str:
    """Return torch's name of a device: ``cuda:0`` for ``/GPU:0``.

    Raises:
        DeviceError: it does not exist here.
    """
    name = torch_device_name(str(device))
    if name != "cpu" and name.partition(":")[0] not in _TF_KINDS:
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
        self.missing: Mapping[str, str] = {"reserved": RESERVED}

    def reader(self) -> Reader:
        """Return a function that returns ``(allocated, peak, UNKNOWN)`` in bytes."""
        return functools.partial(_read_peak, tensorflow_device_name(self.device))


_counter = functools.cache(DeviceCounter)


def device_counter(device: str) -> Counter:
    """Return the counter of an accelerator.

    Raises:
        DeviceError: there is no such device.
    """
    name = device_name(device)
    if name == "cpu":
        raise DeviceError("cpu is no accelerator")
    return _counter(name)
