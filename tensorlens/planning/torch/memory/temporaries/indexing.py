"""Lookups and their gradients, writes through indices, sorts, selections and random orders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.temporaries.rules import (
    INDEX_BYTES,
    WARP,
    Call,
    Rule,
    ceil_div,
    contiguous,
    contiguous_arguments,
    heaviest,
    is_tensor,
    nbytes,
    radix_sort,
    scan,
    scratch,
    total,
    wide_itemsize,
)
from tensorlens.planning.torch.tracker import Scratch

_ROWS_PER_PART = 10
_FEW_INDICES = 3072
_MASKS = (torch.bool, torch.uint8)
_SMALL_SORT = 4096


def _embedding(call: Call) -> list[Scratch]:
    """Return what summing rows of a gradient by their sorted indices takes.

    ``Embedding.cu``, embedding_dense_backward_cuda, and ``EmbeddingBackwardKernel.cu``: rows of one
    index are a segment, summed in parts of ten rows; there can be no more segments than rows of the
    table, nor than indices.
    """
    grad, indices = call.args[:2]
    copies = contiguous(indices, grad)
    count, index = indices.numel(), indices.dtype.itemsize
    if count <= _FEW_INDICES:
        return copies
    rows, width = call.result.shape
    copies.append(scratch(count * index, "sorted indices", before=True))
    copies.append(scratch(count * index, "original indices", before=True))
    segments = min(count, rows)
    parts = count // _ROWS_PER_PART + segments
    later = [
        scratch(count * index, "segment offsets"),
        scratch(INDEX_BYTES, "number of segments"),
        scratch(segments * index, "parts of segments"),
        scratch(segments * index, "offsets of parts"),
        scratch(INDEX_BYTES, "number of parts"),
        scratch(parts * index, "part offsets"),
        *_sums(call.card, grad, parts, segments, rows, width, index),
    ]
    sort = [scratch(count * index, "arange"), radix_sort(count, index, index)]
    unique = [*later[:2], scratch(count * index, "unique keys"), scan(count, index)]
    # the sort is over before there is a result
    if total(sort) > total(later) + nbytes(call.result):
        return copies + sort
    return [*copies, *heaviest(later, unique)]


def _sums(
    card: Card, grad: Any, parts: int, segments: int, rows: int, width: int, index: int
) -> Iterator[Scratch]:
    """Give the sums of parts; few long segments are summed where they belong by newer versions."""
    wide = wide_itemsize(grad.dtype)
    two_steps = parts * width * wide
    warped = ceil_div(width, WARP) * WARP
    blocks = ceil_div(segments * warped, min(warped, 1024))
    if blocks >= card.multiprocessors * 4 or parts <= blocks * 4:
        yield scratch(two_steps, "sums of parts")
        return
    accumulated = rows * width * wide if wide != grad.dtype.itemsize else 0
    at_once = parts * index + accumulated
    yield Scratch(two_steps, min(two_steps, at_once), max(two_steps, at_once), "sums of parts")


def _put(call: Call) -> list[Scratch]:
    # Indexing.cu, index_put_with_sort_kernel
    target, indices, values = call.args[:3]
    found = [each for each in indices if is_tensor(each)]
    masks = _of_masks(found)
    if not call.argument(3, "accumulate"):
        return list(masks)
    if any(each.dtype in _MASKS for each in found):
        return list(masks)
    try:
        count = torch.broadcast_shapes(*(each.shape for each in found)).numel()
    except RuntimeError:
        return []
    per_index = _slice_elements(target, indices)
    return [*contiguous(target, before=False), *_summed_put(target, values, count, per_index)]


def _summed_put(target: Any, values: Any, count: int, per_index: int) -> Sequence[Scratch]:
    whole = count * per_index
    copy = []
    if values.numel() < whole or not values.is_contiguous():
        copy = [scratch(whole * values.dtype.itemsize, "expanded values")]
    linear = scratch(count * INDEX_BYTES, "linear index")
    wrapped = [linear, scratch(count * INDEX_BYTES, "wrapped index")]
    kept = [linear, *copy, scratch(count * INDEX_BYTES, "sorted indices")]
    kept.append(scratch(count * INDEX_BYTES, "original indices"))
    sort = [scratch(count * INDEX_BYTES, "arange"), radix_sort(count, INDEX_BYTES, INDEX_BYTES)]
    return heaviest(wrapped, kept + sort)


def _slice_elements(target: Any, indices: Sequence[Any]) -> int:
    count: int = 1
    for place, size in enumerate(target.shape):
        if place >= len(indices) or not is_tensor(indices[place]):
            count *= size
    return count


def _of_masks(indices: Iterable[Any]) -> list[Scratch]:
    """Return the places of what is true in masks: no more than there are elements."""
    found = []
    for each in indices:
        if each.dtype in _MASKS:
            most = each.numel() * each.dim() * INDEX_BYTES
            found.append(Scratch(most // 2, 0, most, "places of a mask"))
            found.append(scratch(4, "count"))
    return found


def _look_up(call: Call) -> list[Scratch]:
    found = [each for each in call.args[1] if is_tensor(each)]
    # the result has one row for each true element
    return [
        scratch(_places(each, call.result), "places of a mask", before=True)
        for each in found
        if each.dtype in _MASKS
    ]


def _places(mask: Any, result: Any) -> int:
    """Return the bytes of the places that a mask selects, where ``result`` has a row for each."""
    rows = result.shape[0] if result.dim() else 0
    return int(rows) * int(mask.dim()) * INDEX_BYTES


def _masked_select(call: Call) -> Iterator[Scratch]:
    # IndexKernel.cpp, masked_select_out_cuda_impl: an index by the expanded mask
    source, mask = call.args[0], call.args[1]
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    if mask.shape != shape:
        yield scratch(shape.numel(), "expanded mask", before=True)
    yield scratch(
        call.result.numel() * max(len(shape), 1) * INDEX_BYTES, "places of a mask", before=True
    )
    yield scratch(4, "count", before=True)


def _sorted_along(source: Any, dim: int) -> Iterator[Scratch]:
    """Give what sorting a tensor along a dimension takes, its results' memory left out.

    ``Sort.cpp`` and ``SortStable.cu``: up to 4096 elements are sorted where they are, after their
    order was written from an arange. More are sorted by CUB along a dimension that is the last.
    """
    if source.numel() == 0:
        return
    length = source.shape[dim] if source.dim() else 1
    key = source.dtype.itemsize
    if length <= _SMALL_SORT:
        yield scratch(length * INDEX_BYTES, "arange")
        return
    if source.stride(dim) != 1 or not source.is_contiguous():
        # the copy with the dimension last, and results laid out like it
        yield scratch(nbytes(source), "copy to sort")
        yield scratch(nbytes(source), "sorted copy")
        yield scratch(source.numel() * INDEX_BYTES, "sorted copy")
    count = source.numel()
    segments = count // length
    if segments == 1 or length >= 1_000_000:
        yield scratch(length * INDEX_BYTES, "indices")
        yield radix_sort(length, key, INDEX_BYTES)
    elif segments < 128:
        yield scratch(count * INDEX_BYTES, "indices and segments")
        yield scratch(count * INDEX_BYTES, "indices and segments")
        yield scratch(count * key, "sorted keys")
        yield radix_sort(count, key, INDEX_BYTES)
    else:
        yield scratch(count * INDEX_BYTES, "indices")
        # cub::DeviceSegmentedRadixSort: a second pair of buffers
        yield scratch(count * (key + INDEX_BYTES), "sorting")


def _dim(source: Any, value: Any) -> int:
    dims = max(int(source.dim()), 1)
    return int(-1 if value is None else value) % dims


def _sort(call: Call) -> Iterable[Scratch]:
    source, dim = call.args[0], call.kwargs.get("dim")
    # sort(self, dim), sort.stable(self, *, stable, dim)
    return _sorted_along(source, _dim(source, call.args[1] if len(call.args) > 1 else dim))


def _scanned(call: Call) -> list[Scratch]:
    # ScanUtils.cuh, scan_dim
    source, dtype = call.args[0], call.result.dtype
    if source.dtype != dtype:
        return [scratch(nbytes(call.result), "cast copy")]
    return contiguous(source, before=False)


def _nonzero(call: Call) -> list[Scratch]:
    return contiguous(call.args[0])


RULES: dict[str, Rule] = {
    "embedding_dense_backward": _embedding,
    "index_put": _put,
    "index_put_": _put,
    "_index_put_impl_": _put,
    "_unsafe_index_put": _put,
    "index.Tensor": _look_up,
    "masked_select": _masked_select,
    "sort": _sort,
    "topk": contiguous_arguments(0, before=False),
    "cumsum": _scanned,
    "cumprod": _scanned,
    "nonzero": _nonzero,
}
