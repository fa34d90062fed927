"""Values of new tensors whose contents follow from how they are made, or that stand for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from tensorlens.planning.torch.values import const_propagation as known
from tensorlens.planning.torch.values.const_propagation import (
    note,
    note_uniform,
    worth_knowing,
)

_aten = torch.ops.aten
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
    return known.known(result) is not None


def _real(tensor: Any, make: Callable[[], Any], assumed: bool = False) -> None:
    if worth_knowing(tensor):
        with torch._C._DisableTorchDispatch():
            note(tensor, make().to(tensor.dtype), assumed)


def _filled(value: float) -> Maker:
    return lambda result, args, kwargs: _real(
        result, lambda: torch.full(result.shape, value, dtype=result.dtype, device="cpu")
    )


def _full(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    value = kwargs.get("fill_value", args[-1])
    if isinstance(value, torch.Tensor):
        found = known.known(value)
        value = None if found is None else found.tensor.item()
    if isinstance(value, (bool, int, float)):
        _filled(value)(result, args, kwargs)


def _again(func: Any) -> Maker:
    """Make the values with the same function on the CPU."""

    def make(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        _real(result, lambda: func(*args, **options, device="cpu"))

    return make


def _randint(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    bounds = [each for each in args if type(each) is int]
    low, high = (bounds[0], bounds[1]) if len(bounds) > 1 else (0, bounds[0] if bounds else 2)
    _real(result, lambda: torch.randint(low, high, result.shape, generator=known.generator))


def _randperm(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    _real(result, lambda: torch.randperm(result.numel(), generator=known.generator))


def _random(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if result.dtype.is_floating_point or result.dtype is torch.bool:
        return
    high = min(torch.iinfo(result.dtype).max, 1 << 31)
    _real(result, lambda: torch.randint(0, high, result.shape, generator=known.generator))


def _rand(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if result.numel() == 1:
        # a layer that is dropped now and then is there, as it is in most steps
        _filled(0.5)(result, args, kwargs)
    else:
        _real(result, lambda: torch.rand(result.shape, generator=known.generator))


def _in_turn(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Note indices that take each of the choices equally often, as an even router does."""
    indices = result if isinstance(result, torch.Tensor) else result[1]
    source, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dim, int) and source.dim():
        choices = source.shape[dim]
        if choices and indices.dim() == source.dim():
            _real(indices, lambda: _rounds(indices.shape, dim, choices), True)
            return
    else:
        choices = source.numel()
    if choices:
        shape, count = indices.shape, indices.numel()
        _real(indices, lambda: (torch.arange(count) % choices).reshape(shape), True)


def _topk(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    source, indices = args[0], result[1]
    if source.dim() and source.shape[dim]:
        _real(indices, lambda: _rounds(indices.shape, dim, source.shape[dim]), True)


def _ordered(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Note the indices of a sort as those of what is in order already."""
    indices = result if isinstance(result, torch.Tensor) else result[1]
    dim = kwargs.get("dim", next((a for a in args[1:] if type(a) is int), -1))
    if indices.dim():
        shape = [1] * indices.dim()
        shape[dim] = indices.shape[dim]
        _real(
            indices,
            lambda: torch.arange(indices.shape[dim]).reshape(shape).expand(indices.shape),
            True,
        )


def _multinomial(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    _real(result, lambda: _rounds(result.shape, -1, args[0].shape[-1]), True)


def _rounds(shape: Any, dim: int, choices: int) -> Any:
    """Return indices along a dimension that go on in turn from one row to the next."""
    others = [size for i, size in enumerate(shape) if i != dim % len(shape)]
    order = torch.arange(prod(shape)) % choices
    return order.reshape([*others, shape[dim]]).movedim(-1, dim)


def _uniform(value: bool, *, assumed: bool) -> Maker:
    return lambda result, args, kwargs: note_uniform(result, value, assumed)


def _differing(result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    note_uniform(result, len(args) < 2 or args[0] is not args[1])


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
