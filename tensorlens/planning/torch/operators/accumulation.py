"""Gradients that autograd adds in place.

On real tensors autograd adds in place where it may. On fake ones its engine and some of its
formulas allocate the result, since these are of a subclass: ``can_accumulate_inplace`` in
``torch/csrc/autograd/input_buffer.cpp`` (no gradients are recorded, the older gradient is dense,
and it, its Python object and its storage have one reference each) and ``areAnyTensorSubclassLike``
in ``torch/csrc/autograd/FunctionsManual.cpp``.
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

_aten = torch.ops.aten
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
    """Return the zeros if one of these nodes is running, as its formula then writes into them."""
    node = _node_running()
    runs = node is not None and not torch.is_grad_enabled() and node.name().startswith(nodes)
    return zeros if runs else NotImplemented


class Accumulation:
    """Handler of sums that returns the older gradient if autograd's engine would add in place.

    The engine checks the reference counts of the tensor, its Python object and its storage. The
    calls between the engine and this handler add references; how many is learned from a sum that
    is known to be in place, see :meth:`calibrate`. A sum reached by other calls, as from a hook
    or through a dispatch mode of the program, takes memory of its own.
    """

    def __init__(self) -> None:
        self._held_once: dict[_Path, _References] = {}
        """References to a gradient without other holders, by the calls from the engine."""
        self._learns = False

    def __call__(self, mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the older of two gradients if their sum goes into it."""
        return NotImplemented if kwargs or not self._is_in_place(args) else args[0]

    def calibrate(self, accumulate_once: Callable[[], None]) -> None:
        """Learn the references to a gradient from a run that adds one in place."""
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
        path, references = _path(), _references(old)
        if self._learns:
            self._held_once[path] = references
            return False
        held_once = self._held_once.get(path) == references
        return held_once and bool(_aten.is_non_overlapping_and_dense.default(old))


_Path = tuple[int, ...]
"""Addresses of the code objects between an operator's handler and the engine."""
_References = tuple[int, int, int, int]
"""Reference counts of a tensor, its Python object, its storage and the storage's Python object."""


def _references(tensor: Any) -> _References:
    storage = tensor.untyped_storage()
    return (
        tensor._use_count(),
        sys.getrefcount(tensor),
        torch._C._storage_Use_Count(storage._cdata),
        sys.getrefcount(storage),
    )


def _path() -> _Path:
    codes = (frame.f_code for frame, _ in walk_stack(sys._getframe(1)))
    return tuple(map(id, takewhile(lambda code: code.co_filename != _ENGINE, codes)))


accumulation = Accumulation()
ANSWERS: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: accumulation,
    **{func: partial(_into_zeros, nodes) for func, nodes in _INTO_ZEROS.items()},
}
