"""Operators whose result has a size that depends on data, as groups of rows have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorlens.planning.torch.values.constants import (
    MAX_ELEMENTS,
    constant_of,
    is_uniform,
    set_constant,
)
from tensorlens.planning.trace import caution

_aten = torch.ops.aten


def _count(mask: Any, what: str) -> tuple[int, Any]:
    """Return how many elements hold, and their indices (count, dimensions) where known."""
    found = constant_of(mask)
    is_large = found is not None and found.tensor.numel() > MAX_ELEMENTS
    if found is None or (is_large and not is_uniform(found.tensor)):
        _say(what, mask.numel())
        return mask.numel(), None
    with torch._C._DisableTorchDispatch():
        if is_large:
            count = mask.numel() if found.tensor.as_strided((1,), (1,)).item() else 0
            indices = None
        else:
            indices = found.tensor.nonzero()
            count = len(indices)
    if found.state.assumed:
        _say(what, count, mask.numel())
    return count, indices


def _say(what: str, count: int, most: int | None = None) -> None:
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
    return _new(mode, tensor, (count,))


def _index(mode: Any, func: Any, tensor: Any, indices: Sequence[Any]) -> Any:
    if not any(map(_is_mask, indices)):
        return NotImplemented
    plain: list[Any] = []
    for each in indices:
        found = [each]
        if _is_mask(each):
            where = _nonzero(mode, func, each, "a selection by a mask")
            with mode:
                found = where.unbind(1)
        plain += found
    with mode:
        return func(tensor, plain)


def _repeat_interleave(mode: Any, func: Any, repeats: Any, output_size: int | None = None) -> Any:
    found = constant_of(repeats)
    if found is None:
        if output_size is None:
            _say("repeat_interleave", repeats.numel(), 0)
        return _new(mode, repeats, (repeats.numel() if output_size is None else output_size,))
    with torch._C._DisableTorchDispatch():
        values = func(found.tensor)
    return _noted(mode, repeats, values, found.state.assumed)


def _bincount(mode: Any, func: Any, tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    found = constant_of(tensor)
    if found is None or weights is not None:
        if not minlength:
            _say("bincount", 1, 0)
        dtype = torch.int64 if weights is None else weights.dtype
        return _new(mode, tensor, (max(minlength, 1),), dtype)
    with torch._C._DisableTorchDispatch():
        values = func(found.tensor, None, minlength)
    return _noted(mode, tensor, values, found.state.assumed)


def _unique(mode: Any, func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    found = constant_of(tensor)
    if found is not None and found.tensor.numel() <= MAX_ELEMENTS:
        with torch._C._DisableTorchDispatch():
            parts = func(found.tensor, *args, **kwargs)
        if found.state.assumed:
            _say("unique", parts[0].numel(), tensor.numel())
        return tuple(_noted(mode, tensor, part, found.state.assumed) for part in parts)
    names = (each.name for each in func._schema.arguments[1:])
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    dim = given.get("dim")
    rows = tensor.numel() if dim is None else tensor.shape[dim]
    _say("unique", rows)
    places = tensor.shape if dim is None else (rows,)
    inverse = _new(mode, tensor, places if given.get("return_inverse") else (0,), torch.int64)
    counts = _new(mode, tensor, (rows if given.get("return_counts") else 0,), torch.int64)
    return _new(mode, tensor, (rows,) if dim is None else tensor.shape), inverse, counts


def _ctc_loss(
    mode: Any,
    func: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *_: Any,
) -> Any:
    # aten/src/ATen/native/cuda/LossCTC.cu: log_alpha is (batch, time, 2 * longest target + 1)
    steps, batch = log_probs.shape[:2]
    lengths = target_lengths
    if isinstance(lengths, torch.Tensor):
        found = constant_of(lengths)
        lengths = None if found is None else found.tensor.tolist()
    if lengths is None:
        _say("ctc_loss", targets.shape[-1])
        lengths = [targets.shape[-1]]
    longest = max(lengths, default=0)
    return (
        _new(mode, log_probs, (batch,)),
        _new(mode, log_probs, (batch, steps, 2 * longest + 1)),
    )


def _pack(mode: Any, func: Any, data: Any, lengths: Any, batch_first: bool) -> Any:
    batch, steps = data.shape[:2] if batch_first else (data.shape[1], data.shape[0])
    found = constant_of(lengths)
    if found is None or found.state.assumed:
        _say("pack_padded_sequence", batch * steps)
        sizes = [batch] * steps
    else:
        each = found.tensor.tolist()
        sizes = [sum(length > step for length in each) for step in range(max(each))]
    with torch._C._DisableTorchDispatch():
        values = torch.tensor(sizes, device="cpu")
    counts = _noted(mode, lengths, values, False)
    return _new(mode, data, (sum(sizes), *data.shape[2:])), counts


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _new(mode: Any, like: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    with mode:
        return _aten.empty.memory_format(
            [*shape], dtype=like.dtype if dtype is None else dtype, device=like.device
        )


def _noted(mode: Any, like: Any, values: Any, assumed: bool) -> Any:
    result = _new(mode, like, values.shape, values.dtype)
    set_constant(result, values, assumed)
    return result


_ALIGNED = 16


def _grouped_mm(
    mode: Any,
    func: Any,
    one: Any,
    other: Any,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> Any:
    """Return the result of ``_grouped_mm`` on a fake device, in any floating type.

    torch's own rule for tensors without data knows bfloat16 alone, while the CUDA operator runs
    the others group by group into the same result (aten/src/ATen/native/cuda/GroupedBlas.cpp,
    torch 2.10 and later). Rows begin at multiples of 16 bytes there
    (aten/src/ATen/native/GroupedMMUtils.h).
    """
    size = [one.shape[-2], other.shape[-1]]
    if one.dim() == other.dim():
        size.insert(0, offs.shape[0] if one.dim() == 2 else one.shape[0])
    dtype = out_dtype or one.dtype
    row = size[-1]
    if one.device.type == "cuda":
        elements = _ALIGNED // dtype.itemsize
        row = -(-row // elements) * elements
    strides = [row, 1] if len(size) == 2 else [size[1] * row, row, 1]
    with mode:
        return _aten.empty_strided.default(size, strides, dtype=dtype, device=one.device)


SELECTIONS: dict[Any, Callable[..., Any]] = {
    _aten.index.Tensor: _index,
    _aten.nonzero.default: _nonzero,
    _aten.masked_select.default: _masked_select,
    _aten.repeat_interleave.Tensor: _repeat_interleave,
    _aten.bincount.default: _bincount,
    _aten._unique2.default: _unique,
    _aten.unique_dim.default: _unique,
    _aten.unique_consecutive.default: _unique,
    _aten._ctc_loss.Tensor: _ctc_loss,
    _aten._ctc_loss.default: _ctc_loss,
    _aten._pack_padded_sequence.default: _pack,
}
"""Operators to what gives their results: by the values where known, else of every element."""
if hasattr(_aten, "_grouped_mm"):
    SELECTIONS[_aten._grouped_mm.default] = _grouped_mm
