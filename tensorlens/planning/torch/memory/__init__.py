"""Scratch memory that torch's CUDA kernels take from the caching allocator.

The rules are those of torch 2.13 (``aten/src/ATen/native/cuda``; each names its file). Where a fake
kernel has other results than the CUDA kernel, see :mod:`.kernel_overrides`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory import cublas, cudnn, operators
from tensorlens.planning.torch.memory.operators import Call, Rule
from tensorlens.planning.torch.memory.scratch import Scratch


class Temporaries:
    """Gives the memory of kernels while they run, as a ``ScratchRule`` of a tracker."""

    def __init__(self, card: Card, environment: Mapping[str, str] = os.environ) -> None:
        self._card = card
        self._rules: dict[int, Rule] = {}
        """By address of the operator, which lives as long as torch: its own hash is slow."""
        products = dict.fromkeys(cublas.PRODUCTS, cublas.product_rule(card, environment))
        for name, rule in (operators.RULES | cudnn.RULES | products).items():
            packet = getattr(torch.ops.aten, name, None)
            for overload in () if packet is None else packet.overloads():
                if name in products or not overload.endswith("out"):
                    self._rules[id(getattr(packet, overload))] = rule

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return what an operator that has run took besides ``result``."""
        rule = self._rules.get(id(func))
        if rule is None or not (_is_on_cuda(args) or _is_on_cuda((result,))):
            return ()
        call = Call(self._card, func.overloadpacket.__name__, args, kwargs, result, thread)
        return [each for each in rule(call) if each.most]


def _is_on_cuda(values: Sequence[Any]) -> bool:
    """Tell whether the first tensor among arguments or results is; none at all may be."""
    for each in values:
        if isinstance(each, (list, tuple)) and each:
            each = each[0]
        if isinstance(each, torch.Tensor):
            # the device of a fake tensor is an operator
            device = each.fake_device if isinstance(each, FakeTensor) else each.device
            return bool(device.type == "cuda")
    return True
