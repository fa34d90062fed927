"""Sorts, selections, scans and random orders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.temporaries.reductions import cast
from tensorlens.planning.torch.memory.temporaries.rules import (
    INDEX_BYTES,
    Call,
    Rule,
    ceil_div,
    contiguous,
    device_type,
    heaviest,
    nbytes,
    radix_sort,
    scan,
    scratch,
    segmented_sort,
)
from tensorlens.planning.torch.tracker import Scratch

_SMALL_SORT = 4096
_MOST = (1 << 31) - 1


def sorted_along(source: Any, dim: int) -> Iterator[Scratch]:
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
    count = min(source.numel(), _MOST // length * length)
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
        yield segmented_sort(count, key, INDEX_BYTES)


def _dim(source: Any, value: Any) -> int:
    dims = max(int(source.dim()), 1)
    return int(-1 if value is None else value) % dims


def _sort(call: Call) -> Iterable[Scratch]:
    return sorted_along(call.args[0], _dim(call.args[0], call.argument(1, "dim")))


def _stable_sort(call: Call) -> Iterable[Scratch]:
    return sorted_along(call.args[0], _dim(call.args[0], call.kwargs.get("dim", -1)))


def _topk(call: Call) -> Iterator[Scratch]:
    source, k = call.args[0], call.args[1]
    dim = _dim(source, call.argument(2, "dim"))
    if source.numel() == 0:
        return
    select = [*contiguous(source, before=False), *_radix_select(call.card, source, dim)]
    if k <= _SMALL_SORT:
        yield from select
        return
    values, indices = call.result
    resort = [
        scratch(nbytes(values), "sorted values"),
        scratch(nbytes(indices), "sorted indices"),
        *sorted_along(values, dim),
    ]
    yield from heaviest(select, resort)


def _radix_select(card: Card, source: Any, dim: int) -> Iterator[Scratch]:
    """Give the buffers of a selection by several blocks (``TensorTopK.cu``, mbtopk)."""
    length = source.shape[dim] if source.dim() else 1
    slices = source.numel() // length
    if not _is_worth_many_blocks(slices, length):
        return
    # 40 registers for each of 256 threads, of the 65536 that a multiprocessor has
    resident = 6
    items = ceil_div(length * slices, card.multiprocessors * resident * 256)
    items = max(4, min(items, 64))
    per_slice = ceil_div(length, items * 256)
    blocks = slices * per_slice
    key = source.dtype.itemsize
    for size in (
        slices * key,
        2 * slices * 4,
        2 * slices * max(key, 4),
        blocks * 256 * 2,
        slices * 256 * 4,
        blocks * 4,
        blocks * 4,
    ):
        yield scratch(size, "selection buffer")
    yield scan(blocks, 4)


def _is_worth_many_blocks(slices: int, length: int) -> bool:
    steps = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
    least = next((each for most, each in steps if slices <= most), 400)
    return length >= least


def _median(call: Call) -> Iterator[Scratch]:
    # Sorting.cpp, median_impl: the whole tensor is sorted
    source = call.args[0]
    yield scratch(nbytes(source), "sorted values")
    yield scratch(source.numel() * INDEX_BYTES, "sorted indices")
    yield from sorted_along(source.new_empty(source.numel()), 0)


def _of_contiguous(call: Call) -> Iterable[Scratch]:
    return contiguous(call.args[0])


def _scanned(call: Call) -> Iterator[Scratch]:
    # ScanUtils.cuh, scan_dim; only what has one dimension goes to CUB
    values = call.result[0] if isinstance(call.result, (list, tuple)) else call.result
    source = call.args[0]
    if values.numel() == 0:
        return
    yield from cast(call.args, values.dtype)
    if source.dtype == values.dtype:
        yield from contiguous(source, before=False)
    if source.dim() == 0 or source.numel() == source.shape[_dim(source, call.args[1])]:
        yield scan(source.numel(), values.dtype.itemsize)


def _nonzero(call: Call) -> Iterator[Scratch]:
    # Nonzero.cu: how many there are is counted first
    yield from contiguous(call.args[0])
    yield scratch(4, "count", before=True)
    yield scan(call.args[0].numel(), 4)


def _unique(call: Call) -> Iterator[Scratch]:
    # UniqueCub.cu: sorted keys, with their places where the inverse is asked for
    source = call.args[0]
    count, key = source.numel(), source.dtype.itemsize
    inverse = bool(call.argument(2, "return_inverse"))
    yield from contiguous(source)
    yield scratch(count * key, "sorted values", before=True)
    if inverse:
        yield scratch(count * INDEX_BYTES, "sorted indices", before=True)
        yield scratch(count * INDEX_BYTES, "arange", before=True)
    yield radix_sort(count, key, INDEX_BYTES if inverse else 0, before=True)


def _random_order(call: Call) -> Iterator[Scratch]:
    # Randperm.cu: an arange sorted by random keys of as many bits as keep them apart
    count = call.result.numel()
    if device_type(call.result) != "cuda" or count == 0:
        return
    bits = math.ceil(math.log2(count - (6 * count * count + 1) / (12 * math.log(0.9))))
    key = 4 if bits <= 32 else 8
    yield scratch(nbytes(call.result), "arange")
    yield scratch(count * key, "keys")
    yield scratch(count * key, "sorted keys")
    yield radix_sort(count, key, call.result.dtype.itemsize)


def _multinomial(call: Call) -> Iterator[Scratch]:
    # Distributions.cpp, multinomial_out; with replacement: MultinomialKernel.cu
    chances, samples = call.args[0], call.args[1]
    if not call.argument(2, "replacement") or samples == 1:
        yield scratch(nbytes(chances), "exponentials")
        return
    for name in ("distribution", "normalized", "prefix sums"):
        yield scratch(nbytes(chances), name)


def _repeats(call: Call) -> Iterator[Scratch]:
    # Repeat.cpp: the running sum of how often each is repeated
    if isinstance(call.args[0], torch.Tensor):
        yield scratch(call.args[0].numel() * INDEX_BYTES, "sums", before=True)


RULES: dict[str, Rule] = {
    "sort.default": _sort,
    "sort.stable": _stable_sort,
    "topk": _topk,
    "kthvalue": _of_contiguous,
    "median.default": _median,
    "nanmedian.default": _median,
    "median.dim": _of_contiguous,
    "cumsum": _scanned,
    "cumprod": _scanned,
    "logcumsumexp": _scanned,
    "_logcumsumexp": _scanned,
    "_cummax_helper": _of_contiguous,
    "_cummin_helper": _of_contiguous,
    "nonzero": _nonzero,
    "_unique2": _unique,
    "randperm": _random_order,
    "multinomial": _multinomial,
    "repeat_interleave.Tensor": _repeats,
}
