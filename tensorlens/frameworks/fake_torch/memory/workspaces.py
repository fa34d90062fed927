"""Workspaces of CUDA's libraries, which torch takes from its own allocator."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.memory.convolutions import ConvolutionWorkspaces
from tensorlens.frameworks.fake_torch.memory.recurrent_memory import RecurrentWorkspaces
from tensorlens.frameworks.fake_torch.tracker import Hidden, HiddenOf
from tensorlens.frameworks.torch.release import Release, installed_release
from tensorlens.records.cards import Card

_aten: Any = torch.ops.aten
_KIB = 1024
_SMALL = (4096 * 2 + 16 * 8) * _KIB
_LARGE = 4096 * 8 * _KIB
_LARGE_SINCE: tuple[tuple[Release, frozenset[int]], ...] = (
    ((2, 14, 0), frozenset({9, 10, 11, 12})),
    ((2, 12, 0), frozenset({9, 10, 12})),
    ((0, 0, 0), frozenset({9})),
)
"""From which release on cards of which major capabilities have the large workspace."""
_LT = 1024 * _KIB
CUBLAS = "cuBLAS workspace"
CUBLASLT = "cuBLASLt workspace"
_FALSE = ("0", "off", "false", "no", "n")


def _overloads(*names: str) -> frozenset[Any]:
    packets = [getattr(_aten, name) for name in names if hasattr(_aten, name)]
    return frozenset(getattr(packet, each) for packet in packets for each in packet.overloads())


_WITH_BIAS = _overloads("addmm", "_addmm_activation")
_WHOLE = _overloads("linear", "matmul")
"""Come in one piece where no gradients are noted at all (``torch.inference_mode``)."""
_OF_INTEGERS = _overloads("_int_mm")
_CALLS = (
    _WITH_BIAS
    | _WHOLE
    | _OF_INTEGERS
    | _overloads("mm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "addmv", "addmv_")
    | _overloads("dot", "vdot", "addbmm", "addbmm_", "_scaled_mm")
)


class Workspaces:
    """Gives the workspaces of cuBLAS and cuDNN, as a ``HiddenOf`` of a tracker.

    To be asked after the temporaries of an operator: copies of operands come before a workspace.

    cuBLAS: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13. Each thread has a handle of
    its own, and each handle gets a workspace at its first call on a stream, which stays; a step
    that trains has two, as autograd runs the backward pass on a thread of its own. For its bytes
    see :func:`cublas_workspace`. cuBLASLt takes the same one, unless
    ``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` is switched off: then one of 1 MiB, or of
    ``CUBLASLT_WORKSPACE_SIZE`` KiB.

    For cuDNN see :class:`~.convolutions.ConvolutionWorkspaces` and
    :class:`~.recurrent_memory.RecurrentWorkspaces`.

    Args:
        card: whose libraries they are.
        environment: where the variables are looked up.
    """

    def __init__(self, card: Card, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.cublas = cublas_workspace(card, environment, installed_release())
        self.cublaslt = cublaslt_workspace(self.cublas, environment)
        self._unified = _is_unified(environment)
        self._held: set[tuple[str, tuple[int, int, int]]] = set()
        rules: dict[HiddenOf, Iterable[Any]] = {
            self._matrices: _CALLS,
            ConvolutionWorkspaces(card): ConvolutionWorkspaces.OPERATORS,
            RecurrentWorkspaces(): RecurrentWorkspaces.OPERATORS,
        }
        # by address: operators live as long as torch, and their own hash is slow
        self._of = {id(each): rule for rule, operators in rules.items() for each in operators}

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Hidden]:
        """Return what an operator took besides its results."""
        rule = self._of.get(id(func))
        return () if rule is None else rule(func, args, kwargs, result, thread)

    def _matrices(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Hidden]:
        where = result[0] if isinstance(result, (tuple, list)) else result
        device = where.device
        if device.type != "cuda":
            return ()
        index = device.index or 0
        key = index, _stream(index), thread
        name, nbytes = CUBLAS, self.cublas
        if not self._unified and _takes_lt(func, args, kwargs):
            name, nbytes = CUBLASLT, self.cublaslt
        if not nbytes or (name, key) in self._held or not _is_multiplied(func, where, args):
            return ()
        self._held.add((name, key))
        return (Hidden.exactly(nbytes, name, stays=True),)


def cublas_workspace(card: Card, environment: Mapping[str, str], release: Release) -> int:
    """Return the bytes of a handle's workspace (``parseChosenWorkspaceSize``).

    What ``CUBLAS_WORKSPACE_CONFIG`` says, else 8,519,680 (``:4096:2:16:8``), or 32 MiB on some
    cards: before torch 2.12 those of capability 9, from 2.12 on 9, 10 and 12 (pytorch pull request
    175344), from 2.14 on 11 too (189312). Read in the ``libtorch_cuda.so`` of the published 2.11.0,
    2.12.0, 2.13.0 and 2.14.1; 2.14.0 is taken to be as 2.14.1.
    """
    pieces = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pieces:
        return sum(int(size) * int(count) for size, count in pieces) * _KIB
    large = next(majors for since, majors in _LARGE_SINCE if release >= since)
    return _LARGE if card.capability[0] in large else _SMALL


def cublaslt_workspace(cublas: int, environment: Mapping[str, str]) -> int:
    """Return the bytes that cuBLASLt has: a part of cuBLAS's, or its own."""
    text = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    own = int(text) * _KIB if text.isdigit() else _LT
    return min(own, cublas) if _is_unified(environment) else own


def _is_unified(environment: Mapping[str, str]) -> bool:
    return environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1").lower() not in _FALSE


def _stream(index: int) -> int:
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return 0 if current is None else int(current(index))


def _is_multiplied(func: Any, result: Any, args: Sequence[Any]) -> bool:
    """Whether cuBLAS is called: not for whole numbers, nor where there is nothing to do."""
    if not result.numel() or not all(
        each.numel() for each in args[:3] if isinstance(each, torch.Tensor)
    ):
        return False
    first = next((each for each in args if isinstance(each, torch.Tensor)), result)
    floating = first.dtype.is_floating_point or first.dtype.is_complex
    return floating or func in _OF_INTEGERS


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
