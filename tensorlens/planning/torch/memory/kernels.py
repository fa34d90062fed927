"""Scratch of kernels, and rules for CUDA kernels whose scratch depends on their arguments alone.

Files without a folder are in ``aten/src/ATen/native/cuda`` of torch 2.13. Left out are workspaces
of cuSOLVER and cuFFT, and what is small beside a step's tensors: semaphores, partial sums, counters
of sorts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorlens.planning.card import Card


@dataclass(frozen=True, slots=True)
class Scratch:
    """One allocation of a kernel, in bytes."""

    nbytes: int
    """The likeliest size, if it depends on the device."""
    least: int
    most: int
    name: str
    """``cuDNN workspace``, say."""
    is_taken_first: bool = False
    """Whether it is allocated before the operator's results."""
    is_kept: bool = False
    """Whether it outlives the operator, as a library's workspace does."""

    @classmethod
    def exactly(
        cls, nbytes: int, name: str, *, is_taken_first: bool = False, is_kept: bool = False
    ) -> Scratch:
        """Return scratch of a known size."""
        return cls(nbytes, nbytes, nbytes, name, is_taken_first, is_kept)


ScratchRule = Callable[[Any, Sequence[Any], dict[str, Any], Any, int], Sequence[Scratch]]
"""Maps an operator (``torch._ops.OpOverload``) that has run, its arguments, keyword arguments and
result and the number of the thread to its scratch."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator on a card, after it has run."""

    card: Card
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    thread: int

    def argument(self, place: int, name: str) -> Any:
        """Return an argument by place or name; None if it is left out."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)


Rule = Callable[[Call], Iterable[Scratch]]
"""Maps a call to the scratch of its kernel."""

scratch = Scratch.exactly

HALVES = (torch.float16, torch.bfloat16)


def nbytes(tensor: Any) -> int:
    """Return the bytes of a tensor's elements."""
    size: int = tensor.numel() * tensor.dtype.itemsize
    return size


def ceil_div(count: int, unit: int) -> int:
    """Return the number of units that hold ``count``."""
    return -(-count // unit)


def is_channels_last(tensor: Any) -> bool:
    """Tell whether a tensor has its channels last and is not contiguous as well."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return (
        last is not None
        and not tensor.is_contiguous()
        and bool(tensor.is_contiguous(memory_format=last))
    )


def is_dense(tensor: Any) -> bool:
    """Tell whether a tensor is dense in one of the layouts that kernels read."""
    return bool(tensor.is_contiguous()) or is_channels_last(tensor)


_INDEX_BYTES = 8
_WARP = 32


def _sum_size(dtype: torch.dtype) -> int:
    """Return the item size of the type in which ``dtype`` is summed (``at::opmath_type``)."""
    return 4 if dtype in HALVES else int(dtype.itemsize)


def _copied(*places: int) -> Rule:
    """Return the rule of a kernel that copies these arguments if they are not dense."""

    def rule(call: Call) -> Iterator[Scratch]:
        for tensor in (call.args[place] for place in places if place < len(call.args)):
            if isinstance(tensor, torch.Tensor) and not is_dense(tensor):
                yield scratch(nbytes(tensor), "contiguous copy", is_taken_first=True)

    return rule


def _sized_as(place: int, name: str, times: int = 1) -> Rule:
    """Return the rule of a kernel that takes a multiple of an argument's size."""

    def rule(call: Call) -> Iterator[Scratch]:
        yield scratch(times * nbytes(call.args[place]), name)

    return rule


def _loss(call: Call) -> Iterator[Scratch]:
    # PointwiseOps and Loss.cpp: all elements are written before they are reduced
    if call.argument(2, "reduction") != 0:
        yield scratch(nbytes(call.args[0]), "loss of each element")


def _sum(call: Call) -> Iterator[Scratch]:
    """Yield the cast copy of a sum (ReduceOpsUtils.h), and the buffer of sums of columns."""
    source, dtype = call.args[0], call.result.dtype
    if dtype != source.dtype and not (source.dtype in HALVES and dtype == torch.float32):
        yield scratch(source.numel() * dtype.itemsize, "cast copy")
    dims = call.argument(1, "dim")
    is_first = isinstance(dims, (list, tuple)) and sorted(dims) == [*range(len(dims))]
    if dims and is_first and source.is_contiguous() and source.numel():
        columns = source.shape[len(dims) :].numel()
        size = _column_sums(call.card, source.numel() // columns, columns, _sum_size(dtype))
        if size:
            yield scratch(size, "reduction buffer")


def _column_sums(card: Card, rows: int, columns: int, wide: int) -> int:
    """Return the bytes of the buffer of blocks that share columns, as in a bias's gradient.

    ``setReduceConfig`` of Reduce.cuh: about two float32 for each element that is summed, up to
    1 MiB for each multiprocessor of 2048 threads.
    """
    vector = next(each for each in (4, 2, 1) if columns % each == 0)
    across = columns // vector
    width = min(1 << (across.bit_length() - 1), _WARP)
    height = 512 // vector // width
    values, grid = ceil_div(rows, height), ceil_div(across, width)
    target = card.multiprocessors * (card.resident_threads // (width * height))
    if values < 256 or grid > target:
        return 0
    blocks = max(min(ceil_div(target, grid), ceil_div(values, 16)), ceil_div(values, 256))
    return wide * columns * blocks * width * vector if blocks > 1 else 0


def _embedding(call: Call) -> Iterator[Scratch]:
    """Yield the scratch of summing a gradient's rows by their sorted indices.

    Embedding.cu, embedding_dense_backward_cuda, and EmbeddingBackwardKernel.cu: rows of one index
    are a segment, summed in parts of ten rows. There are at most as many segments as rows of the
    table, and as indices.
    """
    grad, indices = call.args[:2]
    count, index = indices.numel(), indices.dtype.itemsize
    if count <= 3072:
        return
    rows, width = call.result.shape
    segments = min(count, rows)
    parts = count // 10 + segments
    for name in ("sorted indices", "original indices"):
        yield scratch(count * index, name, is_taken_first=True)
    for number in (count, 1, segments, segments, 1, parts):
        yield scratch(number * index, "places of segments")
    yield scratch(parts * width * _sum_size(grad.dtype), "sums of parts")


def _put(call: Call) -> Iterator[Scratch]:
    """Yield the six lists of indices of an accumulating write (Indexing.cu, with_sort_kernel)."""
    places = [each for each in call.args[1] if isinstance(each, torch.Tensor)]
    if call.argument(3, "accumulate") and all(each.dtype != torch.bool for each in places):
        count = torch.broadcast_shapes(*(each.shape for each in places)).numel()
        yield scratch(6 * count * _INDEX_BYTES, "sorted indices")


def _sort(call: Call) -> Iterator[Scratch]:
    # Sort.cpp: up to 4096 are sorted in place; more take a key and two indices for each element
    source = call.args[0]
    dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", -1)
    if source.dim() and source.shape[dim] > 4096:
        likely = source.numel() * (source.dtype.itemsize + 2 * _INDEX_BYTES)
        yield Scratch(likely, likely, 2 * likely, "sorting")


def _attention_backward(call: Call) -> Iterator[Scratch]:
    """Yield the query's gradient in float32, and a number for each of its rows.

    Flash attention (``flash_attn/flash_api.cpp``) takes exactly that, and gradients of key and
    value for each head of a group. The memory-efficient kernel (``attention_backward.cu``) takes
    about as much; so may cuDNN's, which torch prefers on cards of capability 9 and 10.
    """
    grad, query, key, _, out = call.args[:5]
    is_flash = call.name == "_scaled_dot_product_flash_attention_backward"
    for tensor in (grad, out) if is_flash else (grad,):
        if not tensor.transpose(1, 2).is_contiguous():
            yield scratch(nbytes(tensor), "contiguous copy", is_taken_first=True)
    batch, heads, length, dimension = query.shape
    rows = batch * heads * ceil_div(length, 128) * 128 * 4
    sums = rows * ceil_div(dimension, _WARP) * _WARP
    yield scratch(rows, ATTENTION)
    is_exact = is_flash and call.card.capability[0] not in (9, 10)
    yield Scratch(sums, sums if is_exact else 0, sums if is_exact else 3 * sums, ATTENTION)
    if key.size(1) != heads:
        expanded = batch * key.size(2) * heads * dimension * query.element_size()
        yield from [scratch(expanded, ATTENTION)] * 2


ATTENTION = "attention workspace"
_COPIED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "topk", "cumsum", "cumprod", "roll"), (0,)),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"), (0,)),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d"), (0,)),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_nearest2d"), (0,)),
    **dict.fromkeys(("upsample_bilinear2d_backward", "upsample_nearest2d_backward"), (0,)),
    **dict.fromkeys(("_log_softmax_backward_data", "_adaptive_avg_pool2d_backward"), (0, 1)),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward"), (0, 1)),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward"), (0, 1)),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "avg_pool2d_backward"), (0, 1)),
    "_fused_rms_norm_backward": (0, 1),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), (0, 1)),
}
"""Places of the arguments that kernels need dense, by operator."""
RULES: dict[str, Rule] = {
    **{name: _copied(*places) for name, places in _COPIED.items()},
    # SoftMax.cu: gradient * output
    "_softmax_backward_data": _sized_as(1, "product of gradient and output"),
    # aten/src/ATen/native/transformers/attention.cpp: rows that are all -inf become zeros
    "_safe_softmax": _sized_as(0, "softmax"),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), _loss),
    # Loss.cpp: log-sigmoid, and (1 - target) that becomes the loss
    "binary_cross_entropy_with_logits": _sized_as(0, "loss of each element", 2),
    # aten/src/ATen/native/ReduceOps.cpp: exp(self - maxima)
    "logsumexp": _sized_as(0, "exponentials"),
    # LossCTC.cu: log_beta is as large as log_alpha
    "_ctc_loss_backward": _sized_as(6, "log beta"),
    **dict.fromkeys(("sum", "mean"), _sum),
    "embedding_dense_backward": _embedding,
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"), _put),
    "sort": _sort,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention_backward",
        ),
        _attention_backward,
    ),
}
