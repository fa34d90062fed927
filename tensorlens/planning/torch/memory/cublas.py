"""Workspaces of cuBLAS: one for each thread, kept from its first product on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.backends import CUBLAS_WORKSPACES
from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.kernels import Call, Rule
from tensorlens.planning.torch.memory.scratch import Scratch

_SMALL, _LARGE = CUBLAS_WORKSPACES
_LARGE_MAJORS = (9, 10, 12)
"""Major compute capabilities of the cards with the large workspace."""
CUBLAS = "cuBLAS workspace"
_INTEGERS = "_int_mm"
# linear and matmul are not decomposed under torch.inference_mode
PRODUCTS = (
    *("mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "baddbmm_", "mv", "addmv"),
    *("addmv_", "dot", "vdot", "linear", "matmul", "_scaled_mm", _INTEGERS),
)


def product_rule(card: Card, environment: Mapping[str, str]) -> Rule:
    """Return the rule of products.

    ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13: each thread has a handle, and each
    handle keeps the workspace that it gets at its first call on a stream. A training step has two,
    as autograd runs the backward pass on a thread of its own. cuBLASLt shares the workspace.
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
        return (Scratch.exactly(size, CUBLAS, is_kept=True),)

    return rule


def cublas_workspace(card: Card, environment: Mapping[str, str]) -> int:
    """Return the bytes of a handle's workspace (``parseChosenWorkspaceSize``).

    By ``CUBLAS_WORKSPACE_CONFIG``, else 8,519,680 (``:4096:2:16:8``), or 32 MiB on cards of
    capability 9, 10 and 12 (pytorch pull request 175344). Before torch 2.12 only those of
    capability 9 have the large one, and from 2.14 on those of 11 have it too (189312).
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
    return is_float or call.name == _INTEGERS
