"""Reductions: casts of what is reduced, and the buffers of those that several blocks share.

``aten/src/ATen/native/cuda/Reduce.cuh``: a block reduces what it can; where the outputs are too
few to keep the card busy, blocks share an output through a buffer in global memory. Also cuFFT and
cuSOLVER, whose workspaces only the card knows: bounds. The likeliest figure of a decomposition is
one copy of its input (``BatchLinearAlgebraLib.cpp``: column-major copies to work on).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.memory.temporaries.rules import (
    HALVES,
    WARP,
    Call,
    Rule,
    ceil_div,
    last_power,
    nbytes,
    resident_threads,
    scratch,
    wide_itemsize,
)
from tensorlens.planning.torch.tracker import Scratch

_MOST_THREADS = 512
_VECTOR = 4
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class _Loop:
    """A reduction as torch's TensorIterator sees it: dimensions from the fastest on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of the input, in elements."""
    reduced: tuple[bool, ...]

    @property
    def outputs(self) -> int:
        kept = zip(self.shape, self.reduced, strict=True)
        return prod(size for size, is_reduced in kept if not is_reduced)


def reduced(
    card: Card, shape: Sequence[int], strides: Sequence[int], dims: Iterable[int], wide: int
) -> list[Scratch]:
    """Return the buffers of a reduction.

    Args:
        card: that it runs on.
        shape: of the input.
        strides: of the input, in elements.
        dims: that are reduced; none stands for all.
        wide: bytes of what is kept while reducing.
    """
    if not prod(shape):
        return []
    shared = _shared(card, _loop(shape, strides, set(dims)), wide)
    return [scratch(size, "reduction buffer") for size in shared if size]


def _loop(shape: Sequence[int], strides: Sequence[int], dims: set[int]) -> _Loop:
    """Order and join the dimensions (``TensorIterator::reorder_dimensions``, ``coalesce``)."""
    everything = not dims
    axes = [
        (size, stride, everything or axis in dims or axis - len(shape) in dims)
        for axis, (size, stride) in enumerate(zip(shape, strides, strict=True))
        if size != 1
    ]
    # reduced ones first, then by stride; of equal strides the later axis first
    axes.reverse()
    axes.sort(key=lambda axis: (not axis[2], axis[1]))
    joined: list[tuple[int, int, bool]] = []
    for size, stride, is_reduced in axes:
        if joined:
            before, step, kind = joined[-1]
            if kind == is_reduced and before * step == stride:
                joined[-1] = before * size, step, kind
                continue
        joined.append((size, stride, is_reduced))
    sizes, steps, kinds = zip(*joined, strict=True) if joined else ((), (), ())
    return _Loop(tuple(sizes), tuple(steps), tuple(kinds))


def _block(dim0: int, dim1: int, most: int) -> tuple[int, int]:
    wide = last_power(dim0) if dim0 < most else most
    high = last_power(dim1) if dim1 < most else most
    width = min(wide, WARP)
    height = min(high, most // width)
    return min(wide, most // height), height


def _shared(card: Card, loop: _Loop, wide: int) -> tuple[int, int]:
    """Return the bytes of buffer and semaphores (``setReduceConfig``)."""
    outputs = loop.outputs
    inputs = prod(loop.shape) // outputs
    count = sum(loop.reduced)
    strides = loop.strides
    along = count == len(strides) or strides[0] < strides[count]
    dim0, dim1 = (inputs, outputs) if along else (outputs, inputs)
    fastest = (strides[0] if along else strides[count]) if strides else 1
    vector = 1
    if fastest == 1:
        if along and dim0 >= 128 and count == 1:
            dim0 //= _VECTOR
        elif not along:
            vector = _output_vector(loop, count)
            dim0 //= vector
    width, height = _block(dim0, dim1, _MOST_THREADS // vector)
    per_input, per_output = (width, 1) if along else (1, width)
    values = ceil_div(inputs, per_input)
    if values < min(height * 16, 256):
        return 0, 0
    per_input *= height
    values = ceil_div(inputs, per_input)
    grid = ceil_div(outputs // vector, per_output)
    target = card.multiprocessors * (resident_threads(card) // (width * height))
    if values < 256 or grid > target:
        return 0, 0
    blocks = max(min(ceil_div(target, grid), ceil_div(values, 16)), ceil_div(values, 256))
    if blocks <= 1:
        return 0, 0
    size = wide * outputs * blocks
    if not along:
        size *= width * vector
    return size, 4 * grid


def _output_vector(loop: _Loop, count: int) -> int:
    vector = _VECTOR
    for number in (loop.shape[count], *loop.strides[:count], *loop.strides[count + 1 :]):
        while number % vector:
            vector //= 2
    return vector


def _dims(value: Any) -> Sequence[int]:
    if value is None:
        return ()
    return [value] if isinstance(value, int) else list(value)


def _summed(place: int) -> Rule:
    """Return the rule of a sum; its input is cast first, but from 16 bits to 32."""

    def rule(call: Call) -> Iterable[Scratch]:
        source, dtype = call.args[0], call.result.dtype
        dims = _dims(call.argument(place, "dim") if place else None)
        # aten/src/ATen/native/SharedReduceOps and ReduceOpsUtils.h, make_reduction_from_ty
        if dtype != source.dtype and not (source.dtype in HALVES and dtype == torch.float32):
            yield scratch(source.numel() * dtype.itemsize, "cast copy")
        yield from reduced(call.card, source.shape, source.stride(), dims, wide_itemsize(dtype))

    return rule


def _plain(place: int, wide: Callable[[torch.dtype], int]) -> Rule:
    """Return the rule of a reduction that keeps its input's type."""

    def rule(call: Call) -> Iterable[Scratch]:
        source = call.args[0]
        dims = _dims(call.argument(place, "dim") if place else None)
        return reduced(call.card, source.shape, source.stride(), dims, wide(source.dtype))

    return rule


def _own(dtype: torch.dtype) -> int:
    size: int = dtype.itemsize
    return size


def _with_index(dtype: torch.dtype) -> int:
    return 16


def _moments(dtype: torch.dtype) -> int:
    # WelfordData in SharedReduceOps.h: mean, squares, a 32-bit count, and the count as a float
    return 32 if dtype == torch.float64 else 16


def _log_sum_exp(call: Call) -> Iterable[Scratch]:
    # aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl: the maxima, and exp(self - maxima)
    source, dtype = call.args[0], call.result.dtype
    yield scratch(call.result.numel() * dtype.itemsize, "maxima")
    yield scratch(source.numel() * dtype.itemsize, "exponentials")
    dims = _dims(call.args[1])
    yield from reduced(call.card, source.shape, source.stride(), dims, wide_itemsize(dtype))


def _norms(call: Call) -> list[Scratch]:
    # ForeachReduceOp.cu, foreach_tensor_norm_cuda: the norm of each chunk, the list's longest
    # tensor deciding how many there are of each; the fast route is for tensors of one type
    tensors = call.args[0]
    if any(each.dtype != tensors[0].dtype for each in tensors):
        return []
    chunks = len(tensors) * max(ceil_div(each.numel(), _CHUNK) for each in tensors)
    return [scratch(chunks * wide_itemsize(call.result[0].dtype), "norms of chunks", before=True)]


def _decomposition(call: Call) -> Iterable[Scratch]:
    size = nbytes(call.args[0])
    return [Scratch(size, 0, 4 * size + (16 << 20), "cuSOLVER workspace")]


def _transform(call: Call) -> Iterable[Scratch]:
    # SpectralOps.cpp, _exec_fft: the input in the order of the dimensions, and cuFFT's work area
    size = max(nbytes(call.args[0]), nbytes(call.result))
    return [Scratch(size, 0, 2 * size + (1 << 20), "cuFFT workspace")]


_DECOMPOSITIONS = (
    *("linalg_cholesky_ex", "_linalg_eigh", "_linalg_svd", "linalg_qr"),
    *("linalg_lu_factor_ex", "_linalg_solve_ex", "_linalg_det", "linalg_inv_ex"),
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(_DECOMPOSITIONS, _decomposition),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _transform),
    "sum.default": _summed(0),
    "sum.dim_IntList": _summed(1),
    "mean.default": _summed(0),
    "mean.dim": _summed(1),
    "amax": _plain(1, _own),
    "amin": _plain(1, _own),
    "max.default": _plain(0, _own),
    "min.default": _plain(0, _own),
    "max.dim": _plain(1, _with_index),
    "min.dim": _plain(1, _with_index),
    "argmax": _plain(1, _with_index),
    "argmin": _plain(1, _with_index),
    "var.correction": _plain(1, _moments),
    "std.correction": _plain(1, _moments),
    "var_mean.correction": _plain(1, _moments),
    "linalg_vector_norm": _plain(2, wide_itemsize),
    "norm.Scalar": _summed(0),
    "logsumexp": _log_sum_exp,
    "_foreach_norm": _norms,
}
