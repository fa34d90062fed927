"""Scratch memory that torch's CUDA kernels take from the caching allocator.

The rule of matrix products, for which cuBLAS keeps a workspace, is here; the rules of other
kernels are in :mod:`.kernels` and :mod:`.cudnn`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensorlens.frameworks.torch.backends import CUBLAS_WORKSPACES
from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory import cudnn, kernels
from tensorlens.planning.torch.memory.kernels import Call, Rule, Scratch

_SMALL, _LARGE = CUBLAS_WORKSPACES
_LARGE_MAJORS = (9, 10, 12)
"""Major compute capabilities of the cards with the large workspace."""
_INTEGER_PRODUCT = "_int_mm"
# linear and matmul are not decomposed under torch.inference_mode
_PRODUCTS = (
    *("mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "baddbmm_", "mv", "addmv"),
    *("addmv_", "dot", "vdot", "linear", "matmul", "_scaled_mm", _INTEGER_PRODUCT),
)


class CudaScratch:
    """The ``ScratchRule`` of a tracker for a card."""

    def __init__(self, card: Card, environment: Mapping[str, str] = os.environ) -> None:
        self._card = card
        self._rules: dict[int, Rule] = {}
        """By the operator's address, as its own hash is slow; operators are never freed."""
        products = dict.fromkeys(_PRODUCTS, _product_rule(card, environment))
        for name, rule in (kernels.RULES | cudnn.RULES | products).items():
            packet = getattr(torch.ops.aten, name, None)
            for overload in () if packet is None else packet.overloads():
                if name in products or not overload.endswith("out"):
                    self._rules[id(getattr(packet, overload))] = rule

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return the scratch of an operator that has run."""
        rule = self._rules.get(id(func))
        if rule is None or not (_is_on_cuda(args) or _is_on_cuda((result,))):
            return ()
        call = Call(self._card, func.overloadpacket.__name__, args, kwargs, result, thread)
        return [each for each in rule(call) if each.most]


def _is_on_cuda(values: Sequence[Any]) -> bool:
    """Tell whether the first tensor among these values is on a card; True if there is none."""
    for each in values:
        if isinstance(each, (list, tuple)) and each:
            each = each[0]
        if isinstance(each, torch.Tensor):
            # fake_device is an attribute, device an operator
            device = each.fake_device if isinstance(each, FakeTensor) else each.device
            return bool(device.type == "cuda")
    return True


def _product_rule(card: Card, environment: Mapping[str, str]) -> Rule:
    """Return the rule of products.

    ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13: each thread has a handle, and each
    handle keeps the workspace that it gets at its first call on a stream. A training step has two
    workspaces, as autograd runs the backward pass on a thread of its own. cuBLASLt shares them.
    """
    size = cublas_workspace(card, environment)
    held: set[tuple[int, int, int]] = set()  # device, stream and thread

    def rule(call: Call) -> Sequence[Scratch]:
        product = call.result[0] if isinstance(call.result, (tuple, list)) else call.result
        index = product.device.index or 0
        key = index, _stream(index), call.thread
        if product.device.type != "cuda" or key in held or not _calls_cublas(call, product):
            return ()
        held.add(key)
        return (Scratch.exactly(size, "cuBLAS workspace", is_kept=True),)

    return rule


def cublas_workspace(card: Card, environment: Mapping[str, str]) -> int:
    """Return the bytes of a handle's workspace (``parseChosenWorkspaceSize``).

    The size that ``CUBLAS_WORKSPACE_CONFIG`` sets; else 32 MiB on cards of capability 9, 10 and 12
    (pytorch pull request 175344) and 8,519,680 (``:4096:2:16:8``) on others. This is the rule of
    torch 2.12 and 2.13, applied to every release: before, only capability 9 has the large one; from
    2.14 on, 11 has it too (pull request 189312).
    """
    pieces = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pieces:
        return sum(int(size) * int(count) for size, count in pieces) * 1024
    return _LARGE if card.capability[0] in _LARGE_MAJORS else _SMALL


def _stream(index: int) -> int:
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return 0 if current is None else int(current(index))


def _calls_cublas(call: Call, product: Any) -> bool:
    """Tell whether cuBLAS is called: not for whole numbers, nor for empty tensors."""
    operands = [each for each in call.args if isinstance(each, torch.Tensor)]
    if not product.numel() or not all(each.numel() for each in operands[:3]):
        return False
    dtype = operands[0].dtype
    is_float: bool = dtype.is_floating_point or dtype.is_complex
    return is_float or call.name == _INTEGER_PRODUCT
