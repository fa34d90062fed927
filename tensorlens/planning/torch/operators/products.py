"""Products of groups of rows, as of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
_ALIGNMENT = 16
"""Bytes at whose multiples rows begin (``aten/src/ATen/native/GroupedMMUtils.h``)."""


def _grouped_mm(
    mode: Any,
    func: Any,
    one: Any,
    other: Any,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Return the result of ``_grouped_mm`` in any floating type.

    torch's own fake kernel takes only bfloat16; the CUDA operator runs the other types group by
    group (aten/src/ATen/native/cuda/GroupedBlas.cpp, torch 2.10 and later).
    """
    size = [one.shape[-2], other.shape[-1]]
    if one.dim() == other.dim():
        size.insert(0, offs.shape[0] if one.dim() == 2 else one.shape[0])
    dtype = out_dtype or one.dtype
    row = size[-1]
    if one.device.type == "cuda":
        elements = _ALIGNMENT // dtype.itemsize
        row = -(-row // elements) * elements
    strides = [row, 1] if len(size) == 2 else [size[1] * row, row, 1]
    with mode:
        return _aten.empty_strided.default(size, strides, dtype=dtype, device=one.device)


ANSWERS: dict[Any, Callable[..., Any]] = {}
if hasattr(_aten, "_grouped_mm"):
    ANSWERS[_aten._grouped_mm.default] = _grouped_mm
