"""Products of groups of rows with a matrix each, as mixtures of experts make them."""

from __future__ import annotations

from typing import Any

import torch

_ALIGNED = 16


def grouped_mm(
    mode: Any,
    func: Any,
    one: Any,
    other: Any,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Return the result of ``_grouped_mm`` on a fake device, in any floating type.

    torch's own rule for tensors without data knows bfloat16 alone, while the CUDA operator runs
    the others group by group into the same result (aten/src/ATen/native/cuda/GroupedBlas.cpp,
    torch 2.10 and later). Rows begin at multiples of 16 bytes there
    (aten/src/ATen/native/GroupedMMUtils.h).
    """
    flat, other_flat = one.dim() == 2, other.dim() == 2
    if flat and other_flat:
        size = [offs.shape[0], one.shape[0], other.shape[1]]
    elif flat:
        size = [one.shape[0], other.shape[-1]]
    elif other_flat:
        size = [one.shape[1], other.shape[1]]
    else:
        size = [one.shape[0], one.shape[1], other.shape[-1]]
    dtype = out_dtype or one.dtype
    row = size[-1]
    if one.device.type == "cuda":
        elements = _ALIGNED // dtype.itemsize
        row = -(-row // elements) * elements
    strides = [row, 1] if len(size) == 2 else [size[1] * row, row, 1]
    with mode:
        return torch.ops.aten.empty_strided.default(size, strides, dtype=dtype, device=one.device)
