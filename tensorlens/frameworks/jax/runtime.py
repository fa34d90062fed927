"""JAX's clients and devices, asked without being made: to make them takes an accelerator's memory.

Nothing here imports JAX.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

_BRIDGE = "jax._src.xla_bridge"
_CALLBACK = "jax._src.callback"
_SPELLINGS = {"gpu": "cuda", "rocm": "cuda", "metal": "mps"}
_SINGLE = ("cpu", "mps")
_OTHERS = ("keras", "torch", "tensorflow")
_ON_HOST = ("pinned_host", "unpinned_host")
"""Kinds of memory that are not the accelerator's own (jax/_src/memory.py, 0.10)."""


def is_in_use() -> bool:
    """Tell whether the program computes with JAX, and has not merely had it imported.

    That is so once JAX has made its devices, where Keras runs on it, and where there is nobody
    else who may have imported it.
    """
    keras = getattr(sys.modules.get("keras.src.backend.config"), "__dict__", {})
    alone = not any(name in sys.modules for name in _OTHERS)
    return bool(clients()) or alone or keras.get("_BACKEND") == "jax"


def clients() -> list[Any]:
    """Return the clients that have been made, one for each platform; none before the first use."""
    made: Any = getattr(sys.modules.get(_BRIDGE), "__dict__", {}).get("_backends")
    if type(made) is not dict or not made:
        return []
    # a platform may have several names
    return [*{id(client): client for client in dict.copy(made).values()}.values()]


def live_arrays() -> list[Any]:
    """Return all arrays that Python holds and that are not deleted, on all platforms."""
    return [array for client in clients() for array in client.live_arrays()]


_accelerators: tuple[tuple[int, ...], dict[str, Any]] = (), {}
"""What :func:`accelerators` gave last, behind the ``id()`` of the clients it is of."""


def accelerators() -> dict[str, Any]:
    """Return this process's devices by torch's spelling, the host's CPUs left out."""
    global _accelerators
    others = [client for client in clients() if client.platform != "cpu"]
    key = tuple(map(id, others))
    if key != _accelerators[0]:
        devices = (device for client in others for device in client.local_devices())
        _accelerators = key, {device_name(device): device for device in devices}
    return _accelerators[1]


@functools.lru_cache(maxsize=256)
def device_name(device: Any) -> str:
    """Return torch's spelling of a device: ``cuda:0``; each CPU device has the host's memory."""
    number = getattr(device, "local_hardware_id", None)
    return spelled(f"{device.platform}:{device.id if number is None else number}")


def spelled(device: str) -> str:
    """Return torch's spelling of JAX's, or of torch's own in part: ``gpu`` is ``cuda:0``."""
    platform, _, number = device.lower().partition(":")
    kind = _SPELLINGS.get(platform, platform)
    return kind if kind in _SINGLE else f"{kind}:{number or 0}"


def memory_name(device: Any, kind: str | None) -> str:
    """Return the device whose memory an array of that kind of memory is in."""
    return "cpu" if kind in _ON_HOST else device_name(device)


def is_in_callback() -> bool:
    """Tell whether this thread runs Python that a computation of JAX waits for."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _CALLBACK:
            return True
        frame = frame.f_back
    return False
