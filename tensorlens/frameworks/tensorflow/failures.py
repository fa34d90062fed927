"""What TensorFlow says when an allocation fails."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from tensorflow.python.framework import dtypes, errors

from tensorlens.frameworks.tensorflow.devices import device_name
from tensorlens.records.failures import Request

_TENSOR = re.compile(r"shape\[([\d,]*)\] and type (\w+) on (\S+)")
_BYTES = re.compile(r"(?:allocate|allocating) (\d+) ?(?:bytes|B)\b")


def failed_request(error: BaseException) -> Request | None:
    """Return what was asked for when ``error`` is a failed allocation, else None.

    A kernel that could not have its tensor says its shape, type and device
    (tensorflow/core/framework/op_kernel.cc, 2.21), which is exact; XLA says a number of bytes.
    """
    if not issubclass(type(error), errors.ResourceExhaustedError):
        return None
    try:
        text = str(error)
    except Exception:
        # somebody's __str__
        return None
    line = " ".join(text.split("\n", 1)[0].split())[:300]
    match = _TENSOR.search(text)
    if match is not None:
        return Request(device_name(match[3]), _nbytes(match[1], match[2]), line)
    size = _BYTES.search(text)
    return Request(None, None if size is None else int(size[1]), line)


def _nbytes(shape: str, dtype: str) -> int | None:
    try:
        kind: Any = dtypes.as_dtype(dtype)
        return prod(int(length) for length in shape.split(",") if length) * int(kind.size)
    except (TypeError, ValueError):
        return None
