"""TensorFlow's devices in torch's spelling: ``/GPU:0`` is ``cuda:0``."""

from __future__ import annotations

import functools

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
