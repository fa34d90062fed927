"""Operators whose results on CUDA are others than torch's fake kernels on a CPU build give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.frameworks.torch.fake.temporaries import in_place

_aten = torch.ops.aten
_NONE = 0
_libraries: list[Any] = []


def install() -> None:
    """Let fake tensors have, from now on, the memory that real ones on a card would have."""
    if _libraries:
        return
    handlers = {
        **in_place.handlers(),
        _aten.binary_cross_entropy.default: _cross_entropy_of_chances,
    }
    _dispatch_first_to({id(func): handler for func, handler in handlers.items()})
    library = torch.library.Library("aten", "IMPL")
    if hasattr(_aten, "_fused_rms_norm_backward"):
        library.impl("_fused_rms_norm", _FusedRMSNorm.apply, "AutogradCUDA")
    _libraries.append(library)


def _dispatch_first_to(handlers: Mapping[int, in_place.Handler]) -> None:
    original = FakeTensorMode.dispatch

    def dispatch(
        mode: Any,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        handler = handlers.get(id(func))
        if handler is not None:
            result = handler(args, kwargs)
            if result is not NotImplemented:
                return result
        return original(mode, func, types, args, kwargs)

    FakeTensorMode.dispatch = dispatch


def _cross_entropy_of_chances(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a loss that keeps the memory of each element's.

    ``aten/src/ATen/native/cuda/Loss.cu``, binary_cross_entropy_out_cuda: the tensor of all losses
    is made a scalar by ``resize_as_``, which gives no memory back.
    """
    reduction = args[3] if len(args) > 3 else kwargs.get("reduction", 1)
    if reduction == _NONE or args[0].fake_device.type != "cuda":
        return NotImplemented
    return torch.empty_like(args[0]).resize_(())


class _FusedRMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """RMS norm as one kernel, which keeps 1 / rms of each row.

    ``aten/src/ATen/native/cuda/layer_norm_kernel.cu``, since torch 2.9. A CPU build knows only
    the formula, of half a dozen operators.
    """

    @staticmethod
    def forward(ctx: Any, source: Any, shape: Any, weight: Any, eps: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            result, rstd = _aten._fused_rms_norm.default(source, shape, weight, eps)
        ctx.save_for_backward(source, weight, rstd)
        ctx.shape = shape
        ctx.mark_non_differentiable(rstd)
        ctx.set_materialize_grads(False)
        return result, rstd

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        if grad is None:
            return None, None, None, None
        source, weight, rstd = ctx.saved_tensors
        needed = ctx.needs_input_grad
        mask = [needed[0], needed[2]]
        made = _aten._fused_rms_norm_backward.default(grad, source, ctx.shape, rstd, weight, mask)
        return made[0], None, made[1], None
