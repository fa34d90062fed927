"""Values of new, random and compared tensors, which do not follow from other values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch

from tensorlens.planning.torch.operators.constants import constant_of, is_tracked, set_constant

_aten = torch.ops.aten
_generator = torch.Generator()
"""Source of random values, so that the program's own generators stay untouched."""


class Rule(NamedTuple):
    """A source of values for an operator's result, or for the last of its results."""

    values: Callable[[Any, Sequence[Any], dict[str, Any]], Any]
    """Maps the fake result, arguments and keyword arguments to values; None if unknown."""
    assumed: bool = False
    """Whether the values stand for others that depend on data."""
    any_size: bool = False
    """Whether the values are one element, expanded, and so never too large."""

    def apply(self, result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Attach the values to a result that has none."""
        tensor = result
        if isinstance(result, (list, tuple)):
            if not result:
                return
            tensor = result[-1]
        if constant_of(tensor) is None and (self.any_size or is_tracked(tensor)):
            with torch._C._DisableTorchDispatch():
                values = self.values(tensor, args, kwargs)
                if values is not None:
                    set_constant(tensor, values.to(tensor.dtype), self.assumed)


def rules() -> dict[Any, Rule]:
    """Return the rules by operator."""
    table: dict[Any, Rule] = {}
    for packet, rule in _RULES.items():
        for overload in packet.overloads():
            if "out" not in overload:
                table[getattr(packet, overload)] = rule
    table[_aten.max.dim] = table[_aten.min.dim] = _ROUND_ROBIN
    return table


def _filled(value: float, tensor: Any, *_: Any) -> Any:
    return torch.full(tensor.shape, value, dtype=tensor.dtype, device="cpu")


def _full(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    value = kwargs.get("fill_value", args[-1])
    if isinstance(value, torch.Tensor):
        constant = constant_of(value)
        value = None if constant is None else constant.tensor.item()
    return _filled(value, tensor) if isinstance(value, (bool, int, float)) else None


def _on_cpu(func: Any, tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the same function on the CPU."""
    options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
    return func(*args, **options, device="cpu")


def _randint(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    bounds = [each for each in args if type(each) is int]
    low, high = (bounds[0], bounds[1]) if len(bounds) > 1 else (0, bounds[0] if bounds else 2)
    return torch.randint(low, high, tensor.shape, generator=_generator)


def _randperm(tensor: Any, *_: Any) -> Any:
    return torch.randperm(tensor.numel(), generator=_generator)


def _random(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if tensor.dtype.is_floating_point or tensor.dtype is torch.bool:
        return None
    limit = min(torch.iinfo(tensor.dtype).max, 1 << 31)
    bounds = [limit if each is None else each for each in args[1:]] or [limit]
    return _randint(tensor, bounds, kwargs)


def _rand(tensor: Any, *_: Any) -> Any:
    if tensor.numel() == 1:
        # keeps a layer that is dropped at random, as in most steps
        return _filled(0.5, tensor)
    return torch.rand(tensor.shape, generator=_generator)


def _round_robin(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return indices that take each choice equally often, as a balanced router does."""
    source, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    choices = source.shape[dim] if isinstance(dim, int) and source.dim() else source.numel()
    return (torch.arange(tensor.numel()) % choices).reshape(tensor.shape) if choices else None


def _topk(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    choices = args[0].shape[dim] if args[0].dim() else 0
    return _round_robin_along(dim, tensor, choices) if choices else None


def _round_robin_along(dim: int, tensor: Any, choices: int) -> Any:
    """Return indices along a dimension that continue from one row to the next."""
    shape = tensor.shape
    others = [size for i, size in enumerate(shape) if i != dim % len(shape)]
    order = torch.arange(prod(shape)) % choices
    return order.reshape([*others, shape[dim]]).movedim(-1, dim)


def _identity_order(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the indices of the sort of a tensor that is sorted already."""
    dim = kwargs.get("dim", next((a for a in args[1:] if type(a) is int), -1))
    if not tensor.dim():
        return None
    shape = [1] * tensor.dim()
    shape[dim] = tensor.shape[dim]
    return torch.arange(tensor.shape[dim]).reshape(shape).expand(tensor.shape)


def _multinomial(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _round_robin_along(-1, tensor, args[0].shape[-1])


def _expanded(value: bool, tensor: Any, *_: Any) -> Any:
    return torch.tensor(value).expand(tensor.shape)


def _different(tensor: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _expanded(args[0] is not args[1], tensor)


_ROUND_ROBIN = Rule(_round_robin, assumed=True)
_FULL = Rule(_full)
_HOLDS = Rule(partial(_expanded, True), assumed=True, any_size=True)
_ALL_FALSE = Rule(partial(_expanded, False), any_size=True)
_ZEROS, _ONES = Rule(partial(_filled, 0)), Rule(partial(_filled, 1))
_RULES: dict[Any, Rule] = {
    **dict.fromkeys((_aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.zero_), _ZEROS),
    **dict.fromkeys((_aten.ones, _aten.ones_like, _aten.new_ones), _ONES),
    **dict.fromkeys((_aten.full, _aten.full_like, _aten.new_full, _aten.fill_), _FULL),
    _aten.scalar_tensor: _FULL,
    _aten.arange: Rule(partial(_on_cpu, torch.arange)),
    _aten.linspace: Rule(partial(_on_cpu, torch.linspace)),
    _aten.eye: Rule(partial(_on_cpu, torch.eye)),
    **dict.fromkeys((_aten.randint, _aten.randint_like), Rule(_randint)),
    _aten.randperm: Rule(_randperm),
    _aten.random_: Rule(_random),
    _aten.rand: Rule(_rand),
    _aten.topk: Rule(_topk, assumed=True),
    **dict.fromkeys((_aten.argmax, _aten.argmin), _ROUND_ROBIN),
    **dict.fromkeys((_aten.sort, _aten.argsort), Rule(_identity_order, assumed=True)),
    _aten.multinomial: Rule(_multinomial, assumed=True),
    **dict.fromkeys((_aten.eq, _aten.lt, _aten.le, _aten.gt, _aten.ge, _aten.isclose), _HOLDS),
    _aten.ne: Rule(_different, assumed=True, any_size=True),
    _aten.isfinite: Rule(partial(_expanded, True), any_size=True),
    **dict.fromkeys((_aten.isnan, _aten.isinf), _ALL_FALSE),
}
