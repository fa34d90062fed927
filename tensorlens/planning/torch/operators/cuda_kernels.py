"""Operators of CUDA builds: fake kernels of those that other builds lack, and grouped products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict

from tensorlens.planning.torch.operators import recurrent

_aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")
"""Kept alive, as its registrations end with it."""


def _no_result(mode: Any, func: Any, *args: Any, **kwargs: Any) -> None:
    """Return nothing: the operator writes into its arguments, or does nothing."""


def _false(mode: Any, func: Any, *args: Any, **kwargs: Any) -> bool:
    return False


def _pin_memory(mode: Any, func: Any, tensor: Any, device: Any = None) -> Any:
    return torch.empty_like(tensor)


_KERNELS: dict[str, Callable[..., Any]] = {
    "_fused_sgd_": _no_result,
    "_fused_adagrad_": _no_result,
    "record_stream": _no_result,
    "_use_cudnn_ctc_loss": _false,
    "_use_miopen_ctc_loss": _false,
    "_pin_memory": _pin_memory,
    "is_pinned": _false,
    **recurrent.CUDA_KERNELS,
}
_COMPOSITES = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators that are composites wherever they have no kernel
(``aten/src/ATen/native/native_functions.yaml``: CompositeImplicitAutograd beside CUDA)."""


def register_cuda_kernels() -> None:
    """Add the kernels to torch's table of fake kernels."""
    for name, kernel in _KERNELS.items():
        packet = getattr(_aten, name, None)
        for overload in () if packet is None else packet.overloads():
            if not overload.endswith("out"):
                op_implementations_dict[getattr(packet, overload)] = kernel
    for name, (function, key) in recurrent.DISPATCHED.items():
        _library.impl(name, function, key)
    for name in _COMPOSITES:
        if hasattr(_aten, name):
            _library.impl(name, _no_kernel, "CUDA")


def _no_kernel(*args: Any, **kwargs: Any) -> Any:
    """Fail: it is registered only so that torch does not decompose the operator."""
    raise NotImplementedError("a tensor on a card that is not there has no data")


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
