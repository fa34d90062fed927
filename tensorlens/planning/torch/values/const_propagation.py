"""Propagates the values of small tensors: whole numbers, truth values and a few floats.

A program decides by them: lengths, masks, labels, counters, the expert a token goes to. Their
values are computed beside the fake ones on the CPU, and are forgotten where they depend on what is
not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

MOST_ELEMENTS = 1 << 22
"""Whole numbers or truth values of one tensor that are computed; 32 MiB of 64-bit ones."""
MOST_FLOATS = 4096

_aten = torch.ops.aten
_CPU = torch.device("cpu")


@dataclass(slots=True)
class SharedState:
    """State that the views of one tensor share."""

    assumed: bool = False
    """Whether the values stand for others that depend on what is not there."""
    stale: bool = False
    """Whether something was written over them that is not known."""


class Constant(NamedTuple):
    """The values of a tensor."""

    tensor: Any
    origin: SharedState


_fixed = SharedState()
generator = torch.Generator()
"""Draws what a program would draw, without touching its own generators."""


def known(tensor: Any) -> Constant | None:
    """Return what is known of a tensor; None for nothing."""
    if isinstance(tensor, FakeTensor):
        found: Constant | None = tensor.__dict__.get("_known")
        if found is None:
            constant = tensor.constant
            return None if constant is None else Constant(constant, _fixed)
        if (
            found.origin.stale
            or found.tensor.shape != tensor.shape
            or found.tensor.dtype != tensor.dtype
        ):
            return None
        return found
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu":
        if tensor.layout is torch.strided and not tensor.is_quantized:
            return Constant(tensor.detach(), _fixed)
    return None


def note(tensor: Any, values: Any, assumed: bool = False) -> None:
    """Keep the values of a fake tensor."""
    if isinstance(tensor, FakeTensor) and values.shape == tensor.shape:
        tensor.__dict__["_known"] = Constant(values, SharedState(assumed))


def note_uniform(tensor: Any, value: bool, assumed: bool = True) -> None:
    """Keep that all elements of a fake tensor are one truth value."""
    with torch._C._DisableTorchDispatch():
        note(tensor, torch.tensor(value).expand(tensor.shape), assumed)


def is_uniform(values: Any) -> bool:
    """Whether a tensor is one element, however often it is repeated."""
    return all(
        size == 1 or stride == 0 for size, stride in zip(values.shape, values.stride(), strict=True)
    )


def worth_knowing(tensor: Any) -> bool:
    """Whether the values of a tensor of this type and size are computed."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.numel() <= MOST_FLOATS)
    return bool(tensor.numel() <= MOST_ELEMENTS)


def compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
    """Compute beside a fake result what it holds, where all that it depends on is known."""
    plan = _plans.get(func)
    if plan is None:
        plan = _plans[func] = _Plan(func)
    if plan.skipped:
        return
    origins: list[SharedState] = []
    try:
        real_args = [_real(each, origins) for each in args]
        real_kwargs = {name: _real(each, origins) for name, each in kwargs.items()}
        if not origins or not plan.affordable(real_args, result):
            # not kept in a variable: its frames would be kept with it, and the tensors in them
            raise _Missing
        outcome = _run(func, real_args, real_kwargs, result)
    except (_Missing, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        for index in plan.written:
            _forget(args[index] if index < len(args) else None)
        for name in plan.written_names:
            _forget(kwargs.get(name))
        return
    assumed = any(origin.assumed for origin in origins)
    for tensor, values in _pairs(result, outcome):
        _attach(tensor, values, args, origins, assumed)


class _Plan:
    """How values go through one operator."""

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        self.skipped = schema is None or not str(schema.name).startswith(("aten::", "prims::"))
        arguments = [] if schema is None else schema.arguments
        writes = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        self.written = [i for i, w in enumerate(writes) if w and not arguments[i].kwarg_only]
        self.written_names = [a.name for a, w in zip(arguments, writes, strict=True) if w]
        self.view = getattr(func, "is_view", False)
        self.random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())

    def affordable(self, args: Sequence[Any], result: Any) -> bool:
        if self.view:
            return True
        if self.random:
            return False
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        for each in tensors[:1]:
            if each.numel() > MOST_ELEMENTS and not is_uniform(each):
                return False
        return all(worth_knowing(each) for each in _flat(result))


_plans: dict[Any, _Plan] = {}


class _Missing(Exception):
    """Something that a result depends on is not known."""


def _real(value: Any, origins: list[SharedState]) -> Any:
    if isinstance(value, torch.Tensor):
        found = known(value)
        if found is None:
            raise _Missing
        origins.append(found.origin)
        return found.tensor
    if type(value) in (list, tuple):
        return type(value)(_real(each, origins) for each in value)
    if type(value) is torch.device:
        return _CPU
    return value


def _run(func: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> Any:
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        if func in _EVEN and all(is_uniform(a) for a in args if isinstance(a, torch.Tensor)):
            small = [
                a.as_strided((1,) * a.dim(), (1,) * a.dim()) if isinstance(a, torch.Tensor) else a
                for a in args
            ]
            return func(*small, **kwargs).expand(result.shape)
        return func(*args, **kwargs)


_EVEN = {
    *(_aten.logical_not.default, _aten.logical_and.default, _aten.logical_or.default),
    *(_aten.bitwise_not.default, _aten.bitwise_and.Tensor, _aten.bitwise_or.Tensor),
    *(_aten.any.default, _aten.any.dim, _aten.all.default, _aten.all.dim),
}
"""Give equal elements for equal elements, so that one is enough."""


def _attach(
    tensor: Any, values: Any, args: Sequence[Any], origins: Sequence[SharedState], assumed: bool
) -> None:
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        return
    for arg in _flat(args):
        if arg is tensor:
            if assumed and (own := known(tensor)) is not None and own.origin is not _fixed:
                own.origin.assumed = True
            return
        source = known(arg)
        if source is not None and source.tensor.untyped_storage()._cdata == (
            values.untyped_storage()._cdata
        ):
            origin = SharedState() if source.origin is _fixed else source.origin
            tensor.__dict__["_known"] = Constant(values, origin)
            return
    tensor.__dict__["_known"] = Constant(values, SharedState(assumed))


def _pairs(result: Any, outcome: Any) -> list[tuple[Any, Any]]:
    if isinstance(result, FakeTensor):
        return [(result, outcome)] if isinstance(outcome, torch.Tensor) else []
    if isinstance(result, (list, tuple)) and isinstance(outcome, (list, tuple)):
        return [p for one, other in zip(result, outcome, strict=False) for p in _pairs(one, other)]
    return []


def _forget(value: Any) -> None:
    for tensor in _flat(value):
        if isinstance(tensor, FakeTensor):
            found = tensor.__dict__.get("_known")
            if found is not None:
                found.origin.stale = True


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in _flat(part)]
    return []
