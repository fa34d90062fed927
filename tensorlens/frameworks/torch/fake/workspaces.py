"""Workspaces of CUDA's libraries, which torch takes from its own allocator."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.fake.convolutions import ConvolutionWorkspaces
from tensorlens.frameworks.torch.fake.tracker import Hidden
from tensorlens.records.cards import Card

_aten: Any = torch.ops.aten
_KIB = 1024
_SMALL = (4096 * 2 + 16 * 8) * _KIB
_LARGE = 4096 * 8 * _KIB
_LT = 1024 * _KIB
CUBLAS = "cuBLAS workspace"
CUBLASLT = "cuBLASLt workspace"
_FALSE = ("0", "off", "false", "no", "n")


def _overloads(*names: str) -> frozenset[Any]:
    packets = [getattr(_aten, name) for name in names if hasattr(_aten, name)]
    return frozenset(getattr(packet, each) for packet in packets for each in packet.overloads())


_MATRIX = _overloads("mm", "addmm", "addmm_", "_addmm_activation")
_BATCHED = _overloads("bmm", "baddbmm", "baddbmm_")
_WITH_BIAS = _overloads("addmm", "_addmm_activation")
_OTHERS = _overloads(
    "mv", "addmv", "addmv_", "dot", "vdot", "addbmm", "addbmm_", "_scaled_mm", "_int_mm"
)
_WHOLE = _overloads("linear", "matmul", "einsum")
"""Come in one piece where no gradients are noted at all (``torch.inference_mode``)."""
_CALLS = _MATRIX | _BATCHED | _OTHERS | _WHOLE


class Workspaces:
    """Gives the workspaces of cuBLAS and cuDNN, as a ``HiddenOf`` of a tracker.

    cuBLAS: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13. Each thread has a handle of
    its own, and each handle gets a workspace at its first call on a stream, which stays; a step
    that trains has two, as autograd runs the backward pass on a thread of its own. It has 8,519,680
    bytes (``:4096:2:16:8``), from capability 9.0 on 32 MiB, or what ``CUBLAS_WORKSPACE_CONFIG``
    says. cuBLASLt takes the same one, unless ``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` is switched off:
    then one of 1 MiB, or of ``CUBLASLT_WORKSPACE_SIZE`` KiB.

    A matrix that cuBLAS cannot read where it lies (neither rows nor columns are dense, as in the
    gradient of a sum) is copied for the call: ``prepare_matrix_for_cublas`` and
    ``prepare_batch_matrix_for_cublas`` of ``aten/src/ATen/native/cuda/Blas.cpp`` and ``Utils``.

    For cuDNN see :class:`~.convolutions.ConvolutionWorkspaces`.

    Args:
        card: whose libraries they are.
        environment: where the variables are looked up.
    """

    def __init__(self, card: Card, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.cublas = cublas_workspace(card, environment)
        self.cublaslt = cublaslt_workspace(self.cublas, environment)
        self._unified = _is_unified(environment)
        self._held: set[tuple[str, int, int, int]] = set()
        self._convolutions = ConvolutionWorkspaces(card)

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Hidden]:
        """Return what an operator took besides its results."""
        if func not in _CALLS:
            return self._convolutions(func, args, kwargs, result, thread)
        where = result[0] if isinstance(result, (tuple, list)) else result
        if where.device.type != "cuda" or not _is_multiplied(func, where, args):
            return ()
        found = _copies(func, args)
        key = where.device.index or 0, _stream(where.device), thread
        if self._unified:
            found += self._once(CUBLAS, key, self.cublas)
        elif _takes_lt(func, args, kwargs):
            found += self._once(CUBLASLT, key, self.cublaslt)
        else:
            found += self._once(CUBLAS, key, self.cublas)
        return found

    def _once(self, name: str, key: tuple[int, int, int], nbytes: int) -> list[Hidden]:
        whole = (name, *key)
        if not nbytes or whole in self._held:
            return []
        self._held.add(whole)
        return [Hidden.exactly(nbytes, name, stays=True)]


def cublas_workspace(card: Card, environment: Mapping[str, str]) -> int:
    """Return the bytes of a handle's workspace (``parseChosenWorkspaceSize``)."""
    pieces = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pieces:
        return sum(int(size) * int(count) for size, count in pieces) * _KIB
    return _LARGE if card.capability[0] >= 9 else _SMALL


def cublaslt_workspace(cublas: int, environment: Mapping[str, str]) -> int:
    """Return the bytes that cuBLASLt has: a part of cuBLAS's, or its own."""
    text = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    own = int(text) * _KIB if text.isdigit() else _LT
    return min(own, cublas) if _is_unified(environment) else own


def _is_unified(environment: Mapping[str, str]) -> bool:
    return environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1").lower() not in _FALSE


def _stream(device: torch.device) -> int:
    return int(torch._C._get_accelerator_stream_id(device)) if _HAS_STREAM else 0


_HAS_STREAM = hasattr(torch._C, "_get_accelerator_stream_id")


def _is_multiplied(func: Any, result: Any, args: Sequence[Any]) -> bool:
    """Whether cuBLAS is called: not for whole numbers, nor where there is nothing to do."""
    if not result.numel() or not all(
        each.numel() for each in args[:3] if isinstance(each, torch.Tensor)
    ):
        return False
    first = next((each for each in args if isinstance(each, torch.Tensor)), result)
    floating = first.dtype.is_floating_point or first.dtype.is_complex
    return floating or func in _OTHERS and first.dtype == torch.int8


def _takes_lt(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether ``addmm`` adds its bias in the same kernel."""
    if func not in _WITH_BIAS:
        return False
    bias, left, right = args[:3]
    return bool(
        kwargs.get("beta", 1) == 1
        and bias.dim() == 1
        and bias.is_contiguous()
        and bias.size(0) == right.size(1)
        and min(*left.shape, *right.shape) > 1
    )


def _copies(func: Any, args: Sequence[Any]) -> list[Hidden]:
    if func in _MATRIX:
        fits = _is_plain
    elif func in _BATCHED:
        fits = _is_plain_batch
    else:
        return []
    operands = [each for each in args if isinstance(each, torch.Tensor)][-2:]
    return [
        Hidden.exactly(each.numel() * each.element_size(), "contiguous copy")
        for each in operands
        if not fits(each)
    ]


def _is_plain(matrix: Any) -> bool:
    rows, columns = matrix.shape
    along, across = matrix.stride()
    if along == 1 and across >= max(1, rows) or across == 1 and along >= max(1, columns):
        return True
    return bool(matrix.is_contiguous() or matrix.t().is_contiguous())


def _is_plain_batch(batch: Any) -> bool:
    _, rows, columns = batch.shape
    _, along, across = batch.stride()
    if across == 1 and along >= max(1, columns) or along == 1 and across >= max(1, rows):
        return True
    return bool(batch.is_contiguous() and along and across)
