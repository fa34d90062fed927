"""The workspaces of cuBLAS, which torch takes from its own allocator."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.release import Release, installed_release
from tensorlens.planning.card import Card
from tensorlens.planning.torch.tracker import Scratch

_aten = torch.ops.aten
_KIB = 1024
_SMALL = (4096 * 2 + 16 * 8) * _KIB
_LARGE = 4096 * 8 * _KIB
_LARGE_SINCE: tuple[tuple[Release, frozenset[int]], ...] = (
    ((2, 14, 0), frozenset({9, 10, 11, 12})),
    ((2, 12, 0), frozenset({9, 10, 12})),
    ((0, 0, 0), frozenset({9})),
)
"""From which release on cards of which major capabilities have the large workspace."""
CUBLAS = "cuBLAS workspace"
_INTEGERS = "_int_mm"
# linear and matmul come whole where no gradients are noted at all (torch.inference_mode)
_PRODUCTS = (
    *("mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "baddbmm_", "mv", "addmv"),
    *("addmv_", "dot", "vdot", "linear", "matmul", "_scaled_mm", _INTEGERS),
)


class Workspaces:
    """Gives the workspaces of cuBLAS, as a ``ScratchRule`` of a tracker.

    To be asked after the temporaries of an operator: copies of operands come before a workspace.

    ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13: each thread has a handle of its own,
    and each handle gets a workspace at its first call on a stream, which stays; a step that trains
    has two, as autograd runs the backward pass on a thread of its own. For its bytes see
    :func:`cublas_workspace`. cuBLASLt takes the same one.

    Args:
        card: whose library it is.
        environment: where the variables are looked up.
    """

    def __init__(self, card: Card, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.cublas = cublas_workspace(card, environment, installed_release())
        self._held: set[tuple[int, int, int]] = set()
        packets = [getattr(_aten, name) for name in _PRODUCTS if hasattr(_aten, name)]
        # by address: operators live as long as torch, and their own hash is slow
        self._products = {
            id(getattr(packet, each)) for packet in packets for each in packet.overloads()
        }

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return what an operator took besides its results."""
        if id(func) not in self._products:
            return ()
        where = result[0] if isinstance(result, (tuple, list)) else result
        device = where.device
        if device.type != "cuda" or not self.cublas:
            return ()
        index = device.index or 0
        key = index, _stream(index), thread
        if key in self._held or not _is_multiplied(func, where, args):
            return ()
        self._held.add(key)
        return (Scratch.exactly(self.cublas, CUBLAS, stays=True),)


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


def _stream(index: int) -> int:
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return 0 if current is None else int(current(index))


def _is_multiplied(func: Any, result: Any, args: Sequence[Any]) -> bool:
    """Whether cuBLAS is called: not for whole numbers, nor where there is nothing to do."""
    operands = [each for each in args if isinstance(each, torch.Tensor)]
    if not result.numel() or not all(each.numel() for each in operands[:3]):
        return False
    dtype = operands[0].dtype
    is_float: bool = dtype.is_floating_point or dtype.is_complex
    return is_float or func.overloadpacket.__name__ == _INTEGERS
