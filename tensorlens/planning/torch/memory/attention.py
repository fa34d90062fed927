"""Attention on a device that is not there, with the kernel that the card would choose.

Without a device torch always takes the kernel that keeps the scores. Here the steps of
``scaled_dot_product_attention`` of ``aten/src/ATen/native/transformers/attention.cpp`` (torch 2.13)
are taken in Python, and :mod:`.attention_choice` stands where that file asks the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.attention_choice import (
    CUDNN,
    EFFICIENT,
    FLASH,
    Attention,
    Chooser,
)
from tensorlens.planning.torch.memory.attention_memory import AttentionTemporaries

__all__ = ["AttentionTemporaries", "FusedAttention"]

_aten = torch.ops.aten
_LOWEST_OF_HALF = -65504.0
_FLEX = (
    "flex_attention: taken for one kernel that keeps its output and a number a row, as it is once "
    "compiled; its block mask is counted, what score_mod captures is not"
)


class FusedAttention:
    """While it is entered, attention on CUDA tensors takes the card's kernels.

    ``torch.nn.functional.scaled_dot_product_attention`` and all that is made of it
    (``torch.nn.MultiheadAttention``, transformers' ``sdpa``), and ``flex_attention``. The fast path
    of ``torch.nn.MultiheadAttention`` for inference is switched off, as it has no fake kernel.

    Args:
        card: whose kernels there are.
        caution: told what is not as on the card, in one line.
        cudnn: version of cuDNN; None: torch's.
    """

    def __init__(
        self, card: Card, caution: Callable[[str], None], cudnn: int | None = None
    ) -> None:
        self._chooser = Chooser(card, cudnn)
        self._caution = caution
        self._library: Any = None
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> FusedAttention:
        operator = _aten.scaled_dot_product_attention.default
        library = torch.library.Library("aten", "IMPL")
        for key in ("AutogradCUDA", "CUDA"):
            library.impl("scaled_dot_product_attention", self._attend, key)
        self._library = library
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        known = operator.py_kernels.get(composite)
        operator.py_kernels[composite] = self._attend_anywhere
        operator._dispatch_cache.clear()
        order = torch._C._get_sdp_priority_order()
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)

        def undo() -> None:
            torch.backends.mha.set_fastpath_enabled(fast)
            torch._C._set_sdp_priority_order(order)
            if known is None:
                del operator.py_kernels[composite]
            else:
                operator.py_kernels[composite] = known
            operator._dispatch_cache.clear()

        self._undo.append(undo)
        self._take_flex()
        return self

    def __exit__(self, *exception: object) -> None:
        while self._undo:
            self._undo.pop()()
        self._library._destroy()

    def _attend_anywhere(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """Run what comes whole because no gradients are noted (``torch.inference_mode``)."""
        if query.device.type == "cuda":
            return self._attend(query, *args, **kwargs)
        operator = _aten.scaled_dot_product_attention.default
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return operator._op_dk(composite, query, *args, **kwargs)

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        asked = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        kernel = self._chooser.choose(asked)
        if kernel == FLASH:
            return flash(query, key, value, dropout_p, is_causal, scale)
        if kernel == CUDNN:
            mask = _additive(attn_mask, query.dtype, _LOWEST_OF_HALF)
            return _aten._scaled_dot_product_cudnn_attention.default(
                query, key, value, mask, asked.trains, dropout_p, is_causal, False, scale=scale
            )[0]
        mask = _additive(attn_mask, query.dtype, -math.inf)
        if kernel == EFFICIENT:
            if mask is not None:
                mask = _expanded(mask, query, key)
            return _aten._scaled_dot_product_efficient_attention.default(
                query, key, value, mask, asked.trains, dropout_p, is_causal, scale=scale
            )[0]
        return _aten._scaled_dot_product_attention_math.default(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]

    def _take_flex(self) -> None:
        try:
            from torch.nn.attention import flex_attention as module
        except ImportError:  # pragma: no cover - torch before 2.5
            return
        original = module.flex_attention

        def flex_attention(
            query: Any, key: Any, value: Any, *args: Any, return_lse: bool = False, **kwargs: Any
        ) -> Any:
            if query.device.type != "cuda":
                return original(query, key, value, *args, return_lse=return_lse, **kwargs)
            self._caution(_FLEX)
            output = flash(query, key, value, 0.0, False, kwargs.get("scale"))
            if not return_lse:
                return output
            return output, query.new_empty(query.shape[:-1], dtype=torch.float32)

        module.flex_attention = flex_attention
        self._undo.append(lambda: setattr(module, "flex_attention", original))


def flash(
    query: Any, key: Any, value: Any, dropout: float, is_causal: bool, scale: float | None
) -> Any:
    """Return what flash attention gives; head dimensions are padded to a multiple of 8."""
    dimension = query.size(-1)
    if scale is None:
        scale = 1 / math.sqrt(dimension)
    output = _aten._scaled_dot_product_flash_attention.default(
        _padded(query), _padded(key), _padded(value), dropout, is_causal, False, scale=scale
    )[0]
    return output if output.size(-1) == dimension else output[..., :dimension]


def _padded(tensor: Any) -> Any:
    missing = -tensor.size(-1) % 8
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _additive(mask: Any, dtype: torch.dtype, masked: float) -> Any:
    """``convert_boolean_attn_mask``."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(masked, dtype=dtype, device=mask.device))


def _expanded(mask: Any, query: Any, key: Any) -> Any:
    """``preprocess_mask``: a bias whose rows do not begin at multiples of 8 is copied."""
    last = mask.size(-1)
    if mask.stride(-1) != 1 or any(mask.stride(each) % 8 for each in range(mask.dim() - 1)):
        mask = torch.nn.functional.pad(mask, (0, 8 - last % 8))[..., :last]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
