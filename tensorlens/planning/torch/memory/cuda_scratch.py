"""Scratch memory that torch's CUDA kernels take from the caching allocator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory import cublas, cudnn, kernels
from tensorlens.planning.torch.memory.kernels import Call, Rule
from tensorlens.planning.torch.memory.scratch import Scratch


class CudaScratch:
    """The ``ScratchRule`` of a tracker for a card."""

    def __init__(self, card: Card, environment: Mapping[str, str] = os.environ) -> None:
        self._card = card
        self._rules: dict[int, Rule] = {}
        """By the operator's address, as its own hash is slow; operators are never freed."""
        products = dict.fromkeys(cublas.PRODUCTS, cublas.product_rule(card, environment))
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
