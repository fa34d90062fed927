"""Operators whose results have sizes that depend on data: indices, selections, unique values.

The sizes are those of known values; else every element is taken, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorlens.planning.torch.operators.constants import (
    MAX_ELEMENTS,
    constant_of,
    is_uniform,
    set_constant,
)
from tensorlens.planning.trace import caution

_aten = torch.ops.aten


def _count(mask: Any, what: str) -> tuple[int, Any]:
    """Return how many elements are true, and their indices (count, dimensions) if known."""
    constant = constant_of(mask)
    is_large = constant is not None and constant.tensor.numel() > MAX_ELEMENTS
    if constant is None or (is_large and not is_uniform(constant.tensor)):
        warn_of_size(what, mask.numel())
        return mask.numel(), None
    with torch._C._DisableTorchDispatch():
        if is_large:
            count = mask.numel() if constant.tensor.as_strided((1,), (1,)).item() else 0
            indices = None
        else:
            indices = constant.tensor.nonzero()
            count = len(indices)
    if constant.state.assumed:
        warn_of_size(what, count, mask.numel())
    return count, indices


def warn_of_size(what: str, count: int, most: int | None = None) -> None:
    """Warn that a result's size was assumed; ``most`` is 0 if unknown, None if it is ``count``."""
    if most is None or most == count:
        taken, may = f"all {count:,}", "less"
    else:
        taken, may = f"{count:,}" + (f" of {most:,}" if most else ""), "more or less"
    caution(
        f"the size of what {what} gives depends on data: it was taken as {taken} elements; "
        f"it may be {may}"
    )


def _nonzero(mode: Any, func: Any, mask: Any, what: str = "nonzero") -> Any:
    count, indices = _count(mask, what)
    with mode:
        result = _aten.empty_strided.default(
            (count, mask.dim()), (1, count or 1), dtype=torch.int64, device=mask.device
        )
    if indices is not None:
        set_constant(result, indices, constant_of(mask).state.assumed)  # type: ignore[union-attr]
    return result


def _masked_select(mode: Any, func: Any, tensor: Any, mask: Any) -> Any:
    with mode:
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        wide = mask.expand(shape)
    count, _ = _count(wide, "masked_select")
    return new_tensor(mode, tensor, (count,))


def _index(mode: Any, func: Any, tensor: Any, indices: Sequence[Any]) -> Any:
    if not any(map(_is_mask, indices)):
        return NotImplemented
    plain: list[Any] = []
    for each in indices:
        parts = [each]
        if _is_mask(each):
            where = _nonzero(mode, func, each, "a selection by a mask")
            with mode:
                parts = where.unbind(1)
        plain += parts
    with mode:
        return func(tensor, plain)


def _repeat_interleave(mode: Any, func: Any, repeats: Any, output_size: int | None = None) -> Any:
    constant = constant_of(repeats)
    if constant is None:
        if output_size is None:
            warn_of_size("repeat_interleave", repeats.numel(), 0)
        return new_tensor(mode, repeats, (repeats.numel() if output_size is None else output_size,))
    with torch._C._DisableTorchDispatch():
        values = func(constant.tensor)
    return tensor_with(mode, repeats, values, constant.state.assumed)


def _bincount(mode: Any, func: Any, tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    constant = constant_of(tensor)
    if constant is None or weights is not None:
        if not minlength:
            warn_of_size("bincount", 1, 0)
        dtype = torch.int64 if weights is None else weights.dtype
        return new_tensor(mode, tensor, (max(minlength, 1),), dtype)
    with torch._C._DisableTorchDispatch():
        values = func(constant.tensor, None, minlength)
    return tensor_with(mode, tensor, values, constant.state.assumed)


def _unique(mode: Any, func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    constant = constant_of(tensor)
    if constant is not None and constant.tensor.numel() <= MAX_ELEMENTS:
        with torch._C._DisableTorchDispatch():
            parts = func(constant.tensor, *args, **kwargs)
        if constant.state.assumed:
            warn_of_size("unique", parts[0].numel(), tensor.numel())
        return tuple(tensor_with(mode, tensor, part, constant.state.assumed) for part in parts)
    names = (each.name for each in func._schema.arguments[1:])
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    dim = given.get("dim")
    rows = tensor.numel() if dim is None else tensor.shape[dim]
    warn_of_size("unique", rows)
    shape = tensor.shape if dim is None else (rows,)
    inverse = new_tensor(mode, tensor, shape if given.get("return_inverse") else (0,), torch.int64)
    counts = new_tensor(mode, tensor, (rows if given.get("return_counts") else 0,), torch.int64)
    return new_tensor(mode, tensor, (rows,) if dim is None else tensor.shape), inverse, counts


def _clone_of_sparse(mode: Any, func: Any, tensor: Any, **kwargs: Any) -> Any:
    """Return a copy with as many values; that of the meta kernel has none."""
    if tensor.layout is not torch.sparse_coo:
        return NotImplemented
    indices, values = tensor._indices().clone(), tensor._values().contiguous().clone()
    copy = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
    return copy._coalesced_(tensor.is_coalesced())


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def new_tensor(mode: Any, like: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    """Return a fake tensor on the device of another."""
    with mode:
        return _aten.empty.memory_format(
            [*shape], dtype=like.dtype if dtype is None else dtype, device=like.device
        )


def tensor_with(mode: Any, like: Any, values: Any, assumed: bool) -> Any:
    """Return a fake tensor with known values on the device of another."""
    result = new_tensor(mode, like, values.shape, values.dtype)
    set_constant(result, values, assumed)
    return result


ANSWERS: dict[Any, Callable[..., Any]] = {
    _aten.index.Tensor: _index,
    _aten.nonzero.default: _nonzero,
    _aten.masked_select.default: _masked_select,
    _aten.repeat_interleave.Tensor: _repeat_interleave,
    _aten.bincount.default: _bincount,
    _aten._unique2.default: _unique,
    _aten.unique_dim.default: _unique,
    _aten.unique_consecutive.default: _unique,
    _aten.clone.default: _clone_of_sparse,
}
