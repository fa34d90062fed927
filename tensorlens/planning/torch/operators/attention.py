"""Attention with the kernel that a card would choose.

Without a device torch always takes the kernel that keeps the scores. This module ports
``scaled_dot_product_attention`` of ``aten/src/ATen/native/transformers/attention.cpp`` (torch 2.13)
and ``select_sdp_backend`` of ``cuda/sdp_utils.cpp`` beside it. The scratch of the kernels is in
:mod:`tensorlens.planning.torch.memory.kernels`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.patches import intercepted
from tensorlens.planning.torch.memory.kernels import HALVES
from tensorlens.planning.trace import caution

_aten = torch.ops.aten
_FLEX_CAUTION = (
    "flex_attention is estimated as compiled: one kernel that keeps its output and a number for "
    "each row; its block mask is counted, what score_mod captures is not"
)

MATH, FLASH, EFFICIENT = 0, 1, 2
"""``at::SDPBackend`` of ``aten/src/ATen/SDPBackend.h``."""

_NEWEST = (12, 1)
"""The newest compute capability that these kernels are built for."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A call with tensors of shape (batch, heads, length, head dimension)."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    is_causal: bool
    enable_gqa: bool

    @property
    def trains(self) -> bool:
        """Whether autograd will need a gradient."""
        tensors = self.query, self.key, self.value
        return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of query, key and value; None if they differ."""
        same = self.query.dtype == self.key.dtype == self.value.dtype
        return self.query.dtype if same else None

    @property
    def is_plain(self) -> bool:
        """Whether fused kernels can read it: four dimensions, one batch size, dense rows."""
        tensors = self.query, self.key, self.value
        return (
            all(each.dim() == 4 and each.size(0) == self.query.size(0) for each in tensors)
            and bool(self.query.size(-2) and self.key.size(-2))
            and all(each.stride(-1) == 1 for each in (*tensors, self.mask) if each is not None)
        )

    @property
    def heads_match(self) -> bool:
        """Whether key and value have as many heads as the query, or a divisor with GQA."""
        heads = self.query.size(-3)
        others = self.key.size(-3), self.value.size(-3)
        return all(heads % each == 0 if self.enable_gqa else heads == each for each in others)


def choose(card: Card, call: Attention) -> int:
    """Return the kernel that ``select_sdp_backend`` would choose.

    The program's switches count (``sdpa_kernel``, ``enable_flash_sdp``). Nested tensors and
    FlashAttention 3 are left out. Flash attention stands for cuDNN's kernel, which torch prefers
    on cards of capability 9 and 10: both have the same results.
    """
    for kernel in torch._C._get_sdp_priority_order():
        fits = _FITS.get(kernel)
        if fits is not None and fits(card, call):
            return int(kernel)
    raise RuntimeError("No available kernel. Aborting execution.")


def _is_for_flash(card: Card, call: Attention) -> bool:
    """Port of ``can_use_flash_attention``; where it stands for cuDNN, cuDNN's switch counts too."""
    stands_for_cudnn = card.capability[0] in (9, 10) and torch._C._get_cudnn_sdp_enabled()
    dimension = call.query.size(-1)
    is_consumer = (8, 6) <= card.capability <= (8, 9) or card.capability >= (12, 0)
    no_backward = 192 < dimension <= 224 or (dimension > 192 and call.dropout > 0)
    return (
        (stands_for_cudnn or torch._C._get_flash_sdp_enabled())
        and call.is_plain
        and call.mask is None
        and dimension == call.key.size(-1) == call.value.size(-1)
        and dimension <= 256
        and (8, 0) <= card.capability <= _NEWEST
        and not (is_consumer and call.trains and no_backward)
        and (not call.is_causal or call.query.size(-2) == call.key.size(-2))
        and call.dtype in HALVES
        and call.heads_match
    )


def _is_for_efficient(card: Card, call: Attention) -> bool:
    """Port of ``can_use_mem_efficient_attention``."""
    half = call.dtype in HALVES
    older = card.capability < (8, 0)
    known = (torch.float16, torch.float32) if older else (*HALVES, torch.float32)
    has_tensor_cores = not older or (half and card.capability >= (7, 0))
    multiple = (8 if half else 4) if has_tensor_cores else 1
    dimensions = call.query.size(-1), call.value.size(-1)
    return (
        torch._C._get_mem_efficient_sdp_enabled()
        and call.is_plain
        and (5, 0) <= card.capability <= _NEWEST
        and call.query.size(-1) == call.key.size(-1)
        and all(each > 0 and each % multiple == 0 for each in dimensions)
        and call.dtype in known
        and call.query.size(-3) == call.key.size(-3) == call.value.size(-3)
    )


_FITS: dict[int, Callable[[Card, Attention], bool]] = {
    FLASH: _is_for_flash,
    EFFICIENT: _is_for_efficient,
    MATH: lambda card, call: bool(torch._C._get_math_sdp_enabled()),
}


@contextlib.contextmanager
def fused_attention(card: Card) -> Iterator[None]:
    """Run attention on CUDA tensors with the kernels of a card while entered.

    This covers ``torch.nn.functional.scaled_dot_product_attention``, its callers
    (``torch.nn.MultiheadAttention``, transformers' ``sdpa``) and ``flex_attention``.
    """
    from torch.nn.attention import flex_attention as flex

    operator = _aten.scaled_dot_product_attention.default
    composite = torch._C.DispatchKey.CompositeImplicitAutograd

    with contextlib.ExitStack() as stack:
        attend = partial(_attend, card)

        def attend_anywhere(query: Any, *args: Any, **kwargs: Any) -> Any:
            """Run the operator under ``torch.inference_mode``, which does not decompose it."""
            if query.device.type == "cuda":
                return attend(query, *args, **kwargs)
            return operator._op_dk(composite, query, *args, **kwargs)

        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        for key in ("AutogradCUDA", "CUDA"):
            library.impl("scaled_dot_product_attention", attend, key)
        stack.callback(operator._dispatch_cache.clear)
        stack.enter_context(mock.patch.dict(operator.py_kernels, {composite: attend_anywhere}))
        operator._dispatch_cache.clear()
        stack.enter_context(intercepted(_flex, (flex, "flex_attention")))
        yield


def _attend(
    card: Card,
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
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel = choose(card, call)
    if kernel == FLASH:
        return flash(query, key, value, dropout_p, is_causal, scale)
    mask = _additive(attn_mask, query.dtype)
    if kernel == EFFICIENT:
        if mask is not None:
            mask = _expanded(mask, query, key)
        return _aten._scaled_dot_product_efficient_attention.default(
            query, key, value, mask, call.trains, dropout_p, is_causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math.default(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _flex(original: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    if query.device.type != "cuda":
        return original(query, key, value, *args, **kwargs)
    caution(_FLEX_CAUTION)
    output = flash(query, key, value, 0.0, False, kwargs.get("scale"))
    rows = partial(query.new_empty, query.shape[:-1], dtype=torch.float32)
    aux = kwargs.get("return_aux")
    if aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        wanted = {name: rows() for name, is_wanted in aux._asdict().items() if is_wanted}
        return output, AuxOutput(**wanted)
    return (output, rows()) if kwargs.get("return_lse") else output


def flash(
    query: Any, key: Any, value: Any, dropout: float, is_causal: bool, scale: float | None
) -> Any:
    """Return the output of flash attention, with head dimensions padded to a multiple of 8."""
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


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    """Return a mask to add to the scores (``convert_boolean_attn_mask``)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))


def _expanded(mask: Any, query: Any, key: Any) -> Any:
    """Expand a mask; copy it if its rows do not begin at multiples of 8 (``preprocess_mask``)."""
    last = mask.size(-1)
    if mask.stride(-1) != 1 or any(mask.stride(each) % 8 for each in range(mask.dim() - 1)):
        mask = torch.nn.functional.pad(mask, (0, 8 - last % 8))[..., :last]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
