"""Operators whose results on CUDA are others than torch's fake kernels on a CPU build give.

Autograd works in place on fake tensors here where it does on real ones: its engine and some of its
formulas ask whether a tensor is one of a subclass, as fake ones are, and then take memory for a
result that would go into a tensor they made themselves (``torch/csrc/autograd/input_buffer.cpp``,
can_accumulate_inplace: no gradients are recorded, the older gradient is dense, and it, its Python
object and its storage have one holder each; ``torch/csrc/autograd/FunctionsManual.cpp``,
areAnyTensorSubclassLike).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import PurePath
from traceback import walk_stack
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.planning.torch.stacks import ProgramStacks
from tensorlens.planning.torch.tracker import Tracker
from tensorlens.planning.torch.values import OVERRIDES, value_patches
from tensorlens.planning.trace import Trace

_aten = torch.ops.aten
_ADD = _aten.add.Tensor
_INTO_ZEROS = {
    _aten.index_put.default: ("IndexBackward", "UnsafeIndexBackward"),
    _aten.scatter_add.default: ("GatherBackward",),
    _aten.index_add.default: ("IndexSelectBackward",),
    **dict.fromkeys(
        (_aten.scatter.src, _aten.scatter.value),
        ("MaxBackward", "MinBackward", "SortBackward", "TopkBackward"),
    ),
}
"""Operators that write into zeros which the formula of a node has just made, and those nodes."""
_ADDING = ("VarMeanBackward", "StdMeanBackward", "Linalg", "LerpBackward", "Atan2Backward")
"""Nodes whose own formulas add two tensors, and keep both."""
_ENGINE = str(PurePath(torch.autograd.__file__).parent / "graph.py")
_node_running = torch._C._current_autograd_node


def _into_zeros(
    nodes: tuple[str, ...], mode: Any, func: Any, zeros: Any, *args: Any, **kwargs: Any
) -> Any:
    node = _node_running()
    runs = node is not None and not torch.is_grad_enabled() and node.name().startswith(nodes)
    return zeros if runs else NotImplemented


class Accumulation:
    """Adds a gradient to one that nobody else holds, where it is the engine that adds them.

    The engine asks how many hold the tensor, its Python object and its storage. What the way from
    the engine to here adds to these numbers is learned from an accumulation known to be in place,
    see :meth:`calibrate`. On any other way, as from a hook or through a dispatch mode of the
    program, a sum takes memory of its own.
    """

    def __init__(self) -> None:
        self._held_once: dict[_Way, _Holders] = {}
        self._learns = False

    def __call__(self, mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the first of two gradients, where their sum goes into it."""
        return NotImplemented if kwargs or not self._is_in_place(args) else args[0]

    def calibrate(self, accumulate_once: Callable[[], None]) -> None:
        """Learn how many hold a gradient that is added to in place, by a run that does so once."""
        self._learns = True
        try:
            accumulate_once()
        finally:
            self._learns = False

    def _is_in_place(self, args: Sequence[Any]) -> bool:
        node = _node_running()
        if node is None or torch.is_grad_enabled() or node.name().startswith(_ADDING):
            return False
        if len(args) != 2 or not all(isinstance(each, torch.Tensor) for each in args):
            return False
        old, new = args
        if old.layout is not torch.strided or old.shape != new.shape or old.dtype != new.dtype:
            return False
        way, holders = _way(), _holders(old)
        if self._learns:
            self._held_once[way] = holders
            return False
        held_once = self._held_once.get(way) == holders
        return held_once and bool(_aten.is_non_overlapping_and_dense.default(old))


_Way = tuple[int, ...]
"""The code objects between an operator's handler and the engine, by their addresses."""
_Holders = tuple[int, int, int, int]
"""How many hold a tensor, its Python object, its storage and the storage's Python object."""


def _holders(tensor: Any) -> _Holders:
    storage = tensor.untyped_storage()
    return (
        tensor._use_count(),
        sys.getrefcount(tensor),
        torch._C._storage_Use_Count(storage._cdata),
        sys.getrefcount(storage),
    )


def _way() -> _Way:
    codes = (frame.f_code for frame, _ in walk_stack(sys._getframe(1)))
    return tuple(map(id, takewhile(lambda code: code.co_filename != _ENGINE, codes)))


_KERNELS = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators with a kernel on CUDA that are a formula of several wherever there is none
(``aten/src/ATen/native/native_functions.yaml``: CompositeImplicitAutograd beside CUDA)."""
_libraries: list[Any] = []


def install() -> None:
    """Let fake tensors have the memory that real ones on a card would have, where they answer."""
    if _libraries:
        return
    accumulation = Accumulation()
    OVERRIDES.update({_ADD: accumulation, _aten.clone.default: _clone_of_sparse})
    OVERRIDES.update((func, partial(_into_zeros, nodes)) for func, nodes in _INTO_ZEROS.items())
    library = torch.library.Library("aten", "IMPL")
    for name in _KERNELS:
        if hasattr(_aten, name):
            library.impl(name, _no_kernel, "CUDA")
    _libraries.append(library)
    with value_patches():
        _accumulate_once()  # torch loads more of itself the first time
        accumulation.calibrate(_accumulate_once)


def _accumulate_once() -> None:
    """Add the gradients of ``sin`` and ``cos``, each a new tensor, as a program's run would."""
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with FakeTensorMode(allow_non_fake_inputs=True), stacks, Tracker(trace, stacks):
        both = torch.ones(2, requires_grad=True).exp()
        (both.sin() * both.cos()).sum().backward()


def _no_kernel(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("a tensor on a card that is not there has no data")


def _clone_of_sparse(mode: Any, func: Any, tensor: Any, **kwargs: Any) -> Any:
    """Return a copy with as many values: the meta kernel's has none."""
    if tensor.layout is not torch.sparse_coo:
        return NotImplemented
    indices, values = tensor._indices().clone(), tensor._values().contiguous().clone()
    copy = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
    return copy._coalesced_(tensor.is_coalesced())
