"""TensorFlow's eager context and devices, asked without being made: that would initialise them."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager


def handle() -> Any:
    """Return the context's handle, or None as long as the program has run no operation."""
    made = eager.context_safe()
    return None if made is None else getattr(made, "_context_handle", None)


def is_initialized() -> bool:
    """Tell whether the program has run an operation, which is when devices are made."""
    return handle() is not None


def devices() -> list[str]:
    """Return the full names of the local devices; none before the context is made."""
    made = eager.context_safe()
    if made is None or handle() is None:
        return []
    return [device.name for device in made.list_logical_devices()]


def memory_info(device: str, *, reset: bool) -> tuple[int, int] | None:
    """Return what a device's allocator says is in use, and the peak, in bytes.

    Args:
        device: TensorFlow's short name: ``GPU:0``.
        reset: begin a new peak.
    """
    found = handle()
    if found is None:
        return None
    try:
        info = pywrap_tfe.TFE_GetMemoryInfo(found, device)
        if reset:
            pywrap_tfe.TFE_ResetMemoryStats(found, device)
    except (ValueError, RuntimeError):
        # its allocator keeps no statistics
        return None
    return int(info["current"]), int(info["peak"])


_SPELLINGS = {"gpu": "cuda"}


@functools.lru_cache(maxsize=256)
def device_name(text: str) -> str:
    """Return the short name of ``/job:localhost/replica:0/task:0/device:GPU:1``: ``cuda:1``.

    All of a host's CPU devices have its memory: each is ``cpu``.
    """
    kind, _, number = text.rpartition("device:")[2].lower().lstrip("/").partition(":")
    if kind in ("", "cpu"):
        return "cpu"
    return f"{_SPELLINGS.get(kind, kind)}:{number or 0}"
