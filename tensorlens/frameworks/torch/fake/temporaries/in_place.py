"""Lets autograd work in place on fake tensors where it does on real ones.

Its engine and some of its formulas ask whether a tensor is one of a subclass, as fake ones are, and
then take memory for a result that would go into a tensor they made themselves
(``torch/csrc/autograd/input_buffer.cpp``, can_accumulate_inplace;
``torch/csrc/autograd/FunctionsManual.cpp``, areAnyTensorSubclassLike).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch

Handler = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Gives what an operator gives for its arguments, or ``NotImplemented``."""

_aten = torch.ops.aten
_ADD = _aten.add.Tensor
_INTO_ZEROS = {
    _aten.index_put.default: ("IndexBackward", "UnsafeIndexBackward"),
    _aten.scatter_add.default: ("GatherBackward",),
    _aten.index_add.default: ("IndexSelectBackward",),
    **dict.fromkeys(
        (_aten.scatter.src, _aten.scatter.value),
        (
            "MaxBackward",
            "MinBackward",
            "SortBackward",
            "TopkBackward",
            "KthvalueBackward",
            "MedianBackward",
            "NanmedianBackward",
            "ModeBackward",
            "CummaxBackward",
            "CumminBackward",
        ),
    ),
}
"""Operators that write into zeros which the formula of a node has just made, and those nodes."""
_ADDING = ("VarMeanBackward", "StdMeanBackward", "Linalg", "LerpBackward", "Atan2Backward")
"""Nodes whose own formulas add two tensors, and keep both."""
_ENGINE = str(PurePath(torch.autograd.__file__).parent / "graph.py")
_node_running = torch._C._current_autograd_node


def handlers() -> dict[Any, Handler]:
    """Return what runs operators that autograd would run in place on real tensors."""
    made: dict[Any, Handler] = {_ADD: _Accumulation()}
    for func, nodes in _INTO_ZEROS.items():
        made[func] = _into_zeros(nodes)
    return made


def _into_zeros(nodes: tuple[str, ...]) -> Handler:
    def handle(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return args[0] if _runs_in(nodes) else NotImplemented

    return handle


def _runs_in(names: tuple[str, ...]) -> bool:
    node = _node_running()
    return node is not None and not torch.is_grad_enabled() and node.name().startswith(names)


class _Accumulation:
    """Adds a gradient to one that nobody else holds, where it is the engine that adds them.

    How many hold a tensor is compared with the fewest seen: what the way through Python adds to
    that number is the same for every gradient.
    """

    def __init__(self) -> None:
        self._holders = 1 << 30
        self._storage_holders = 1 << 30

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the first of two gradients, where their sum goes into it."""
        return NotImplemented if kwargs or not self._is_in_place(args) else args[0]

    def _is_in_place(self, args: Sequence[Any]) -> bool:
        node = _node_running()
        if node is None or torch.is_grad_enabled() or node.name().startswith(_ADDING):
            return False
        if len(args) != 2 or not all(isinstance(each, torch.Tensor) for each in args):
            return False
        old, new = args
        if old.shape != new.shape or old.dtype != new.dtype or _is_in_python():
            return False
        holders, storage_holders = _holders(old)
        self._holders = min(self._holders, holders, _holders(new)[0])
        self._storage_holders = min(self._storage_holders, storage_holders)
        held_once = holders == self._holders and storage_holders == self._storage_holders
        return held_once and bool(_aten.is_non_overlapping_and_dense.default(old))


def _holders(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


_WAY = (
    *(
        str(PurePath(torch.__file__).parent / name)
        for name in (
            "utils/_python_dispatch.py",
            "utils/_stats.py",
            "_subclasses",
            "_dynamo",
            "_ops.py",
            "_compile.py",
        )
    ),
    str(PurePath(__file__).parents[1]),
)
"""Files that the way from an operator to its fake kernel leads through."""


def _is_in_python() -> bool:
    """Tell whether a hook or a function's own backward has called, not the engine."""
    frame = sys._getframe(1)
    while True:
        outer = frame.f_back
        if outer is None or outer.f_code.co_filename == _ENGINE:
            return False
        frame = outer
        if not frame.f_code.co_filename.startswith(_WAY):
            return True
