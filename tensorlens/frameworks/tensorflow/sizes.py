"""Bytes of tensors by type and shape."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod

from tensorflow.python.framework import dtypes

OBJECTS = {"string": 24, "resource": 0, "variant": 0}
"""Types whose elements are objects, with the bytes of an element itself."""


@cache
def item_size(dtype: str) -> int:
    """Return the bytes of an element."""
    return OBJECTS[dtype] if dtype in OBJECTS else int(dtypes.as_dtype(dtype).size)


def nbytes(shape: Iterable[int], dtype: str) -> int:
    """Return the bytes of a tensor."""
    return prod(shape) * item_size(dtype)
