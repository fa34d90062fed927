"""Memory of attention kernels besides their results, which torch's fake kernels do not show.

Flash attention: ``mha_fwd`` and ``mha_bwd`` of
``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``. Memory-efficient:
``attention.cu`` and ``attention_backward.cu`` beside it, and ``mem_eff_attention/
kernel_backward.h``. cuDNN does not say what it takes: the likeliest is what flash attention takes
in float32, the least nothing, the most twice that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tensorlens.planning.torch.memory.temporaries.rules import (
    HALVES,
    Call,
    Rule,
    ceil_div,
    is_deterministic,
    nbytes,
    scratch,
)
from tensorlens.planning.torch.tracker import Scratch

NAME = "attention workspace"


def _flash(call: Call) -> list[Scratch]:
    """Return accumulators of the splits into which keys are cut where there are few queries."""
    query, key = call.args[:2]
    batch, heads, length, dimension = query.shape
    dropout = call.argument(3, "dropout_p") or 0.0
    if dropout > 0 or not query.numel():
        return []
    if length == 1 and heads > key.size(1):
        length, heads = heads // key.size(1), key.size(1)
    block = 256 if dimension <= 64 else 128 if dimension <= 128 else 64
    splits = _splits(
        batch * heads * ceil_div(length, 64),
        2 * call.card.multiprocessors,
        ceil_div(key.size(2), block),
    )
    if splits <= 1:
        return []
    rows = splits * batch * heads * length * 4
    return [scratch(rows, NAME), scratch(rows * _rounded(dimension), NAME)]


def _flash_backward(call: Call) -> list[Scratch]:
    grad, query, key, _, out = call.args[:5]
    found = [_copy(each) for each in (grad, out) if not each.transpose(1, 2).is_contiguous()]
    batch, heads, length, dimension = query.shape
    rows = batch * heads * ceil_div(length, 128) * 128 * 4
    splits = ceil_div(call.card.multiprocessors, batch * heads) if is_deterministic() else 1
    found += [scratch(rows, NAME), scratch(splits * rows * _rounded(dimension), NAME)]
    if key.size(1) != heads:
        # gradients of key and value for each head of the query
        expanded = batch * key.size(2) * heads * dimension * query.element_size()
        found += [scratch(expanded, NAME)] * 2
    return found


def _efficient(call: Call) -> list[Scratch]:
    """Return the accumulator where half precision does not fit into registers."""
    query, value = call.args[0], call.args[2]
    batch, heads, length, dimension = query.shape
    if query.dtype not in HALVES or max(dimension, value.size(3)) <= 128:
        return []
    return [scratch(batch * length * heads * value.size(3) * 4, NAME)]


def _efficient_backward(call: Call) -> list[Scratch]:
    grad, query, key, value = call.args[:4]
    copies = [] if grad.transpose(1, 2).is_contiguous() else [_copy(grad)]
    kernels = _kernels(call.card.capability, query, value)
    batch, heads, length, dimension = query.shape
    rows = batch * heads * length * 4
    sizes = [
        kernel.workspace(batch * heads, length, key.size(2), dimension, value.size(3))
        for kernel in kernels
    ]
    workspace = Scratch(sizes[0], min(sizes), max(sizes), NAME)
    delta = scratch(rows, NAME)
    # the product of gradient and output is gone before the workspace comes
    product = rows * value.size(3)
    if query.dtype in HALVES or product + rows <= workspace.nbytes:
        return [*copies, delta, workspace]
    return [*copies, delta, scratch(product, NAME), scratch(rows, NAME)]


def _cudnn_backward(call: Call) -> list[Scratch]:
    grad, query, key, value, out = call.args[:5]
    copies = [] if grad.stride() == out.stride() else [_copy(grad)]
    batch, heads, length, dimension = query.shape
    rows = batch * heads * length * 4
    likely = rows * dimension + rows
    if key.size(1) != heads:
        likely += batch * key.size(2) * heads * (dimension + value.size(3)) * key.element_size()
    return [*copies, Scratch(likely, 0, 2 * likely, NAME)]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A backward kernel of ``mem_eff_attention/kernels/cutlassB.h``, for Volta and later."""

    queries: int
    """``kBlockSizeI``."""
    keys: int
    """``kBlockSizeJ``."""
    dimension: int
    """The largest head dimension, ``kMaxK``."""
    is_half: bool

    def workspace(
        self, heads: int, queries: int, keys: int, dimension: int, value_dimension: int
    ) -> int:
        """``Params::workspace_size()``, with as many splits of the keys as there are blocks.

        Dimensions are those of a head, ``heads`` those of all of the batch.
        """
        blocks = ceil_div(queries, self.queries) * ceil_div(dimension, self.keys)
        elements = blocks * (4 + self.queries * self.keys)
        # gradients of key and value that do not stay in registers (kOutputInRF)
        if self.is_half and self.dimension > self.queries:
            splits = 1 if is_deterministic() else ceil_div(keys, self.keys)
            for size in (dimension, value_dimension):
                elements += splits * self.keys * ceil_div(size, self.queries) * self.queries
        return heads * ceil_div(elements, 4) * 4 * 4


def _kernels(capability: tuple[int, int], query: Any, value: Any) -> list[_Kernel]:
    """Return the kernels that may be taken, the likeliest first.

    The first one of the list in ``cutlassB.h`` that fits is taken; which fit into shared memory is
    not told by that file: the large ones are taken to do so where a block can have 160 KiB.
    """
    half = query.dtype in HALVES
    largest = max(query.size(3), value.size(3))
    limit = next(each for each in (32, 64, 128, 65536) if largest <= each)
    small = _Kernel(64, 64, limit, half)
    if limit <= 64:
        return [small]
    large = _Kernel(128, 128 if half and limit == 128 else 64, limit, half)
    roomy = capability in ((8, 0), (9, 0)) or capability[0] == 10
    return [large, small] if roomy else [small, large]


def _splits(blocks: int, multiprocessors: int, key_blocks: int) -> int:
    """``num_splits_heuristic`` of ``flash_api.cpp``."""
    if blocks >= 0.8 * multiprocessors:
        return 1
    counts = [
        count
        for count in range(1, min(128, multiprocessors, key_blocks) + 1)
        if count == 1 or ceil_div(key_blocks, count) != ceil_div(key_blocks, count - 1)
    ]
    waves = [blocks * count / multiprocessors for count in counts]
    efficiency = [wave / math.ceil(wave) for wave in waves]
    enough = 0.85 * max(efficiency, default=0.0)
    return next((n for n, e in zip(counts, efficiency, strict=True) if e >= enough), 1)


def _rounded(dimension: int) -> int:
    multiple = 32 if dimension <= 128 else 64
    return ceil_div(dimension, multiple) * multiple


def _copy(tensor: Any) -> Scratch:
    return scratch(nbytes(tensor), "contiguous copy", before=True)


RULES: dict[str, Rule] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
