"""Values of small tensors, from how they are made on: whole numbers, truth values, a few floats.

A program decides by them: lengths, masks, labels, counters, the expert a token goes to. Their
values are computed beside the fake ones on the CPU, and are forgotten where they depend on what is
not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
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
        for index, name in plan.written:
            _forget(args[index] if index < len(args) else kwargs.get(name))
        return
    assumed = any(origin.assumed for origin in origins)
    for tensor, values in _pairs(result, outcome):
        _attach(tensor, values, args, origins, assumed)


class _Plan:
    """How values go through one operator."""

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

    def affordable(self, args: Sequence[Any], result: Any) -> bool:
        if self.view:
            return True
        if self.random:
            return False
        first = next((each for each in args if isinstance(each, torch.Tensor)), None)
        if first is not None and first.numel() > MOST_ELEMENTS and not is_uniform(first):
            return False
        return all(map(worth_knowing, _flat(result)))


_UNSET = ("aten::empty_like", "aten::new_empty", "aten::new_empty_strided")
"""Operators whose results hold whatever was in memory, though all that they are given is known."""

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
    is_alike = values.shape == tensor.shape and values.dtype == tensor.dtype
    if not is_alike or values.layout is not torch.strided:
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


Maker = Callable[[Any, Sequence[Any], dict[str, Any]], None]
"""Notes what a result holds, by the result, the arguments and the named ones."""


def makers() -> dict[Any, Maker]:
    """Return what notes the values of results that do not follow from other values."""
    table: dict[Any, Maker] = {}
    for packet, make in _MAKERS.items():
        for overload in packet.overloads():
            if "out" not in overload:
                table[getattr(packet, overload)] = make
    table[_aten.max.dim] = table[_aten.min.dim] = _in_turn
    return table


def are_known(result: Any) -> bool:
    """Whether the values of a result, or of its last part, are known already."""
    if isinstance(result, (list, tuple)):
        return not result or are_known(result[-1])
    return known(result) is not None


def _noted(tensor: Any, make: Callable[[], Any], assumed: bool = False) -> None:
    if worth_knowing(tensor):
        with torch._C._DisableTorchDispatch():
            note(tensor, make().to(tensor.dtype), assumed)


def _filled(value: float) -> Maker:
    return lambda result, args, kwargs: _noted(
        result, lambda: torch.full(result.shape, value, dtype=result.dtype, device="cpu")
    )


def _full(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    value = kwargs.get("fill_value", args[-1])
    if isinstance(value, torch.Tensor):
        found = known(value)
        value = None if found is None else found.tensor.item()
    if isinstance(value, (bool, int, float)):
        _filled(value)(result, args, kwargs)


def _again(func: Any) -> Maker:
    """Make the values with the same function on the CPU."""

    def make(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        _noted(result, lambda: func(*args, **options, device="cpu"))

    return make


def _randint(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    bounds = [each for each in args if type(each) is int]
    low, high = (bounds[0], bounds[1]) if len(bounds) > 1 else (0, bounds[0] if bounds else 2)
    _noted(result, lambda: torch.randint(low, high, result.shape, generator=generator))


def _randperm(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    _noted(result, lambda: torch.randperm(result.numel(), generator=generator))


def _random(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if result.dtype.is_floating_point or result.dtype is torch.bool:
        return
    most = min(torch.iinfo(result.dtype).max, 1 << 31)
    bounds = [most if each is None else each for each in args[1:]] or [most]
    _randint(result, bounds, kwargs)


def _rand(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if result.numel() == 1:
        # a layer that is dropped now and then is there, as it is in most steps
        _filled(0.5)(result, args, kwargs)
    else:
        _noted(result, lambda: torch.rand(result.shape, generator=generator))


def _in_turn(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Note indices that take each of the choices equally often, as an even router does."""
    indices = result if isinstance(result, torch.Tensor) else result[1]
    source, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    choices = source.shape[dim] if isinstance(dim, int) and source.dim() else source.numel()
    if choices:
        shape, count = indices.shape, indices.numel()
        _noted(indices, lambda: (torch.arange(count) % choices).reshape(shape), True)


def _topk(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    source, indices = args[0], result[1]
    if source.dim() and source.shape[dim]:
        _noted(indices, lambda: _rounds(indices.shape, dim, source.shape[dim]), True)


def _ordered(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Note the indices of a sort as those of what is in order already."""
    indices = result if isinstance(result, torch.Tensor) else result[1]
    dim = kwargs.get("dim", next((a for a in args[1:] if type(a) is int), -1))
    if indices.dim():
        shape = [1] * indices.dim()
        shape[dim] = indices.shape[dim]
        _noted(
            indices,
            lambda: torch.arange(indices.shape[dim]).reshape(shape).expand(indices.shape),
            True,
        )


def _multinomial(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    _noted(result, lambda: _rounds(result.shape, -1, args[0].shape[-1]), True)


def _rounds(shape: Any, dim: int, choices: int) -> Any:
    """Return indices along a dimension that go on in turn from one row to the next."""
    others = [size for i, size in enumerate(shape) if i != dim % len(shape)]
    order = torch.arange(prod(shape)) % choices
    return order.reshape([*others, shape[dim]]).movedim(-1, dim)


def _uniform(value: bool, *, assumed: bool) -> Maker:
    """Note that all elements are one truth value."""

    def make(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        with torch._C._DisableTorchDispatch():
            note(result, torch.tensor(value).expand(result.shape), assumed)

    return make


def _differing(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    _uniform(args[0] is not args[1], assumed=True)(result, args, kwargs)


_compared = _uniform(True, assumed=True)


_MAKERS: dict[Any, Maker] = {
    **dict.fromkeys((_aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.zero_), _filled(0)),
    **dict.fromkeys((_aten.ones, _aten.ones_like, _aten.new_ones), _filled(1)),
    **dict.fromkeys((_aten.full, _aten.full_like, _aten.new_full, _aten.fill_), _full),
    _aten.scalar_tensor: _full,
    _aten.arange: _again(torch.arange),
    _aten.linspace: _again(torch.linspace),
    _aten.eye: _again(torch.eye),
    **dict.fromkeys((_aten.randint, _aten.randint_like), _randint),
    _aten.randperm: _randperm,
    _aten.random_: _random,
    _aten.rand: _rand,
    _aten.topk: _topk,
    **dict.fromkeys((_aten.argmax, _aten.argmin), _in_turn),
    **dict.fromkeys((_aten.sort, _aten.argsort), _ordered),
    _aten.multinomial: _multinomial,
    **dict.fromkeys((_aten.eq, _aten.lt, _aten.le, _aten.gt, _aten.ge, _aten.isclose), _compared),
    _aten.ne: _differing,
    _aten.isfinite: _uniform(True, assumed=False),
    **dict.fromkeys((_aten.isnan, _aten.isinf), _uniform(False, assumed=False)),
}
