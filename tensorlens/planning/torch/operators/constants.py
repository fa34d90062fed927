"""Values of fake tensors, as real tensors on the CPU beside them.

Programs decide by small tensors: lengths, masks, labels, counters, the expert of a token. Values
of results are computed from those of arguments, until they depend on unknown ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

_aten = torch.ops.aten
_CPU = torch.device("cpu")
MAX_ELEMENTS = 1 << 22
"""Most whole numbers or truth values of one tensor that are kept; 32 MiB of 64-bit ones."""
_MAX_FLOATS = 4096


@dataclass(slots=True)
class SharedState:
    """State that all views of one tensor share."""

    assumed: bool = False
    """Whether the values stand for others that depend on data."""
    stale: bool = False
    """Whether unknown values were written over them."""


class Constant(NamedTuple):
    """The values of a tensor."""

    tensor: Any
    state: SharedState


FIXED = SharedState()
"""State of real tensors and of torch's own constants."""
_ATTRIBUTE = "_constant_values"


def attached(tensor: Any) -> Constant | None:
    """Return the values attached to a fake tensor, stale ones too; None if there are none."""
    constant: Constant | None = vars(tensor).get(_ATTRIBUTE)
    return constant


def _attach(tensor: Any, constant: Constant) -> None:
    """Attach values to a fake tensor."""
    vars(tensor)[_ATTRIBUTE] = constant


def constant_of(tensor: Any) -> Constant | None:
    """Return the values of a tensor; None if unknown."""
    if isinstance(tensor, FakeTensor):
        constant = attached(tensor)
        if constant is None:
            return None if tensor.constant is None else Constant(tensor.constant, FIXED)
        values, state = constant
        is_current = values.shape == tensor.shape and values.dtype == tensor.dtype
        return constant if is_current and not state.stale else None
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
        if tensor.layout is torch.strided and not tensor.is_quantized:
            return Constant(tensor.detach(), FIXED)
    return None


def set_constant(tensor: Any, values: Any, assumed: bool = False) -> None:
    """Attach values of the same shape to a fake tensor, as a tensor without views."""
    if isinstance(tensor, FakeTensor) and values.shape == tensor.shape:
        _attach(tensor, Constant(values, SharedState(assumed)))


def is_uniform(values: Any) -> bool:
    """Tell whether a tensor is one element, expanded."""
    return all(
        size == 1 or stride == 0 for size, stride in zip(values.shape, values.stride(), strict=True)
    )


def is_tracked(tensor: Any) -> bool:
    """Tell whether values of this type and number are kept."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.numel() <= _MAX_FLOATS)
    return bool(tensor.numel() <= MAX_ELEMENTS)


def compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
    """Attach values to a fake result if those of all arguments are known."""
    plan = _plan(func)
    if plan.skipped:
        return
    states: list[SharedState] = []
    try:
        real_args = [_real(each, states) for each in args]
        real_kwargs = {name: _real(each, states) for name, each in kwargs.items()}
        if not states or not plan.is_affordable(real_args, result):
            # always a new instance: a kept one would keep frames alive, and their tensors
            raise _Unknown
        outcome = _run(func, real_args, real_kwargs, result)
    except (_Unknown, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        for index, name in plan.written:
            _forget(args[index] if index < len(args) else kwargs.get(name))
        return
    assumed = any(state.assumed for state in states)
    for tensor, values in _pairs(result, outcome):
        _attach_outcome(tensor, values, args, assumed)


class _Plan:
    """Facts about an operator that decide whether and how its values are computed."""

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        name = "" if schema is None else str(schema.name)
        self.skipped = not name.startswith(("aten::", "prims::")) or name in _UNSET
        arguments = [] if schema is None else schema.arguments
        self.written = [
            (place, each.name)
            for place, each in enumerate(arguments)
            if each.alias_info is not None and each.alias_info.is_write
        ]
        self.view = getattr(func, "is_view", False)
        self.random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())

    def is_affordable(self, args: Sequence[Any], result: Any) -> bool:
        """Tell whether it takes little time and memory to compute the result."""
        if self.view:
            return True
        if self.random:
            return False
        first = next((each for each in args if isinstance(each, torch.Tensor)), None)
        if first is not None and first.numel() > MAX_ELEMENTS and not is_uniform(first):
            return False
        return all(map(is_tracked, _tensors(result)))


_UNSET = ("aten::empty_like", "aten::new_empty", "aten::new_empty_strided")
"""Operators that leave their results uninitialized."""

_plan = cache(_Plan)


class _Unknown(Exception):
    """An argument has no known values."""


def _real(value: Any, states: list[SharedState]) -> Any:
    if isinstance(value, torch.Tensor):
        constant = constant_of(value)
        if constant is None:
            raise _Unknown
        states.append(constant.state)
        return constant.tensor
    if type(value) in (list, tuple):
        return type(value)(_real(each, states) for each in value)
    if type(value) is torch.device:
        return _CPU
    return value


def _run(func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> Any:
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        if func in _UNIFORM and all(is_uniform(a) for a in args if isinstance(a, torch.Tensor)):
            small = [
                a.as_strided((1,) * a.dim(), (1,) * a.dim()) if isinstance(a, torch.Tensor) else a
                for a in args
            ]
            return func(*small, **kwargs).expand(result.shape)
        return func(*args, **kwargs)


_UNIFORM = {
    *(_aten.logical_not.default, _aten.logical_and.default, _aten.logical_or.default),
    *(_aten.bitwise_not.default, _aten.bitwise_and.Tensor, _aten.bitwise_or.Tensor),
    *(_aten.any.default, _aten.any.dim, _aten.all.default, _aten.all.dim),
}
"""Operators whose result is one element, expanded, if their arguments are."""


def _attach_outcome(tensor: Any, values: Any, args: Sequence[Any], assumed: bool) -> None:
    """Attach computed values to a result, with the state of the argument that it is a view of."""
    is_alike = values.shape == tensor.shape and values.dtype == tensor.dtype
    if not is_alike or values.layout is not torch.strided:
        return
    storage = values.untyped_storage()._cdata
    for arg in _tensors(args):
        constant = constant_of(arg)
        if arg is tensor:
            if assumed and constant is not None and constant.state is not FIXED:
                constant.state.assumed = True
            return
        if constant is not None and constant.tensor.untyped_storage()._cdata == storage:
            state = SharedState() if constant.state is FIXED else constant.state
            _attach(tensor, Constant(values, state))
            return
    _attach(tensor, Constant(values, SharedState(assumed)))


def _pairs(result: Any, outcome: Any) -> list[tuple[Any, Any]]:
    """Match fake results to computed ones."""
    if isinstance(result, FakeTensor):
        return [(result, outcome)] if isinstance(outcome, torch.Tensor) else []
    if isinstance(result, (list, tuple)) and isinstance(outcome, (list, tuple)):
        return [p for one, other in zip(result, outcome, strict=False) for p in _pairs(one, other)]
    return []


def _forget(value: Any) -> None:
    """Mark the values of written arguments as stale."""
    for tensor in _tensors(value):
        if isinstance(tensor, FakeTensor) and (constant := attached(tensor)) is not None:
            constant.state.stale = True


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in _tensors(part)]
    return []
