"""Reading a device's peak line by line without taking the user's own peak away.

An allocator keeps one peak, and who resets it resets it for everybody. So before each of our resets
the peak is kept, and the two functions behind ``tf.config.experimental.get_memory_info`` and
``reset_memory_stats`` are replaced by ones that know of it (tensorflow/python/eager/context.py
looks them up at each call, 2.21).
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.python import pywrap_tfe

from tensorlens.frameworks.tensorflow import context

_lock = threading.RLock()
_highest: dict[str, int] = {}
"""TensorFlow's short device name to the peak since the user's last reset, without the newest."""
_info: Any = None
_reset: Any = None


def read(device: str) -> tuple[int, int] | None:
    """Return what is in use and the peak since the previous read, in bytes; None if not known."""
    with _lock:
        _install()
        handle = context.handle()
        if handle is None:
            return None
        try:
            info = _info(handle, device)
            _highest[device] = max(_highest.get(device, 0), int(info["peak"]))
            _reset(handle, device)
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
    with _lock:
        return {**info, "peak": max(info["peak"], _highest.get(_short(device), 0))}


def _users_reset(handle: Any, device: str, *rest: Any) -> Any:
    with _lock:
        _highest.pop(_short(device), None)
        return _reset(handle, device, *rest)


def _short(device: str) -> str:
    """Return ``GPU:0`` of any spelling of it."""
    parts = device.upper().replace("/", "").split("DEVICE:")[-1].split(":")
    return f"{parts[0]}:{parts[1] if len(parts) > 1 else 0}"
