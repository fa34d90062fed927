"""Memory of attention kernels besides their results, which torch's fake kernels do not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.torch.tracker import Scratch

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
NAME = "attention workspace"
_PACKAGE = (
    "the flash_attn package: what its kernels take for themselves is assumed to be what those of "
    "torch's own flash attention take"
)


class AttentionTemporaries:
    """Gives the memory of attention kernels while they run, as a ``HiddenOf`` of a tracker.

    Flash attention: ``mha_fwd`` and ``mha_bwd`` of
    ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``. Memory-efficient:
    ``attention.cu`` and ``attention_backward.cu`` beside it, and ``mem_eff_attention/
    kernel_backward.h``. cuDNN does not say what it takes: the likeliest is what flash attention
    takes in float32, the least nothing, the most twice that.

    Args:
        card: what the kernels run on.
        caution: told what is not known, in one line.
    """

    def __init__(self, card: Card, caution: Callable[[str], None]) -> None:
        self._card = card
        self._caution = caution
        rules: dict[Any, Callable[[Sequence[Any]], list[Scratch]]] = {
            _aten._scaled_dot_product_flash_attention.default: self._flash,
            _aten._scaled_dot_product_flash_attention_backward.default: self._flash_backward,
            _aten._scaled_dot_product_efficient_attention.default: self._efficient,
            _aten._scaled_dot_product_efficient_attention_backward.default: (
                self._efficient_backward
            ),
            _aten._scaled_dot_product_cudnn_attention_backward.default: self._cudnn_backward,
        }
        # by address: operators live as long as torch, and their own hash is slow
        self._of = {id(operator): rule for operator, rule in rules.items()}

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return what an operator took besides its results."""
        rule = self._of.get(id(func))
        if rule is not None:
            return rule(args) if args[0].device.type == "cuda" else ()
        if func.namespace == "flash_attn":
            return self._package(func, args)
        return ()

    def _flash(self, args: Sequence[Any]) -> list[Scratch]:
        """Accumulators of the splits into which keys are cut where there are few queries."""
        query, key = args[0], args[1]
        dropout = args[3] if len(args) > 3 else 0.0
        batch, heads, length, dimension = query.shape
        if dropout == 0 and length == 1 and heads > key.size(1):
            length, heads = heads // key.size(1), key.size(1)
        if dropout > 0 or not query.numel():
            return []
        block = 256 if dimension <= 64 else 128 if dimension <= 128 else 64
        splits = _splits(
            batch * heads * _ceil(length, 64),
            2 * self._card.multiprocessors,
            _ceil(key.size(2), block),
        )
        if splits <= 1:
            return []
        rows = splits * batch * heads * length * 4
        return [_take(rows), _take(rows * _rounded_dimension(dimension))]

    def _flash_backward(self, args: Sequence[Any]) -> list[Scratch]:
        grad, query, key, _, out = args[:5]
        copies = [_copy(each) for each in (grad, out) if not each.transpose(1, 2).is_contiguous()]
        batch, heads, length, dimension = query.shape
        return copies + self._accumulators(
            batch, heads, length, key.size(1), key.size(2), dimension, query.element_size()
        )

    def _accumulators(
        self,
        batch: int,
        heads: int,
        length: int,
        key_heads: int,
        key_length: int,
        dimension: int,
        itemsize: int,
    ) -> list[Scratch]:
        rounded = _ceil(length, 128) * 128
        rows = batch * heads * rounded * 4
        splits = _ceil(self._card.multiprocessors, batch * heads) if _is_deterministic() else 1
        found = [_take(rows), _take(splits * rows * _rounded_dimension(dimension))]
        if key_heads != heads:
            found += [_take(batch * key_length * heads * dimension * itemsize)] * 2
        return found

    def _efficient(self, args: Sequence[Any]) -> list[Scratch]:
        """An accumulator where half precision does not fit into registers."""
        query, value = args[0], args[2]
        batch, heads, length, dimension = query.shape
        if query.dtype not in _HALVES or max(dimension, value.size(3)) <= 128:
            return []
        return [_take(batch * length * heads * value.size(3) * 4)]

    def _efficient_backward(self, args: Sequence[Any]) -> list[Scratch]:
        grad, query, key, value = args[:4]
        dropout = args[9]
        copies = [] if grad.transpose(1, 2).is_contiguous() else [_copy(grad)]
        kernels = _kernels(query.dtype, self._card.capability, query, value, dropout > 0)
        batch, heads, length, dimension = query.shape
        rows = batch * heads * length * 4
        sizes = [
            kernel.workspace(batch * heads, length, key.size(2), dimension, value.size(3))
            for kernel in kernels
        ]
        likely = kernels[0]
        workspace = Scratch(sizes[0], min(sizes), max(sizes), NAME)
        delta = _take(rows)
        if likely.computes_delta:
            return [*copies, delta, workspace]
        # the product of gradient and output is gone before the workspace comes
        product = rows * value.size(3) * (3 if query.dtype in _HALVES else 1)
        if product + rows > workspace.nbytes:
            return [*copies, delta, _take(product), _take(rows)]
        return [*copies, delta, workspace]

    def _cudnn_backward(self, args: Sequence[Any]) -> list[Scratch]:
        grad, query, key, value, out = args[:5]
        copies = [] if grad.stride() == out.stride() else [_copy(grad)]
        batch, heads, length, dimension = query.shape
        rows = batch * heads * length * 4
        likely = rows * dimension + rows
        if key.size(1) != heads:
            likely += batch * key.size(2) * heads * (dimension + value.size(3)) * key.element_size()
        return [*copies, Scratch(likely, 0, 2 * likely, NAME)]

    def _package(self, func: Any, args: Sequence[Any]) -> list[Scratch]:
        """Of ``flash_attn::_flash_attn_backward(dout, q, k, v, ...)``, batch by length by heads."""
        self._caution(_PACKAGE)
        if "backward" not in func._schema.name or len(args) < 4 or args[1].dim() != 4:
            return []
        query, key = args[1], args[2]
        batch, length, heads, dimension = query.shape
        return self._accumulators(
            batch, heads, length, key.size(2), key.size(1), dimension, query.element_size()
        )


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A backward kernel of ``mem_eff_attention/kernels/cutlassB.h``."""

    queries: int
    """``kBlockSizeI``."""
    keys: int
    """``kBlockSizeJ``."""
    dimension: int
    """The largest head dimension, ``kMaxK``."""
    is_half: bool
    oldest: int
    """``ArchTag::kMinComputeCapability``."""

    @property
    def keeps_output(self) -> bool:
        """``kOutputInRF``."""
        return self.is_half and self.dimension <= self.queries

    @property
    def computes_delta(self) -> bool:
        """``kKernelComputesDelta``."""
        return self.is_half and (self.keeps_output or self.oldest != 70)

    def workspace(
        self, heads: int, queries: int, keys: int, dimension: int, value_dimension: int
    ) -> int:
        """``Params::workspace_size()``, with as many splits of the keys as there are blocks.

        Args:
            heads: of all of the batch.
            queries: length of the queries.
            keys: length of the keys.
            dimension: of a head of the query.
            value_dimension: of a head of the value.
        """
        elements = 0
        if self.is_half and not self.keeps_output:
            splits = 1 if _is_deterministic() or self.oldest < 70 else _ceil(keys, self.keys)
            for size in (dimension, value_dimension):
                elements += splits * self.keys * _ceil(size, self.queries) * self.queries
        if self.oldest >= 70 or self.is_half:
            blocks = _ceil(queries, self.queries) * _ceil(dimension, self.keys)
            elements += blocks * (4 + self.queries * self.keys)
        return heads * _ceil(elements, 4) * 4 * 4


def _kernels(
    dtype: torch.dtype, capability: tuple[int, int], query: Any, value: Any, dropout: bool
) -> list[_Kernel]:
    """Return the kernels that may be taken, the likeliest first.

    The first one of the list in ``cutlassB.h`` that fits is taken; which fit into shared memory is
    not told by that file: the large ones are taken to do so where a block can have 160 KiB.
    """
    half = dtype in _HALVES
    largest = max(query.size(3), value.size(3))
    major, minor = capability
    roomy = (major, minor) in ((8, 0), (9, 0)) or major == 10
    if major >= 8:
        oldest = 80
    else:
        oldest = {(7, 5): 75, (7, 0): 70, (7, 2): 70}.get((major, minor), 50)
    for limit in (32, 64):
        if largest <= limit:
            return [_Kernel(64, 64, limit, half, oldest)]
    limit = 128 if largest <= 128 else 65536
    small = _Kernel(64, 64, limit, half, oldest)
    if oldest == 50 or (not half and oldest < 80):
        return [small]
    large = _Kernel(128, 64, limit, half, oldest)
    if half and oldest == 80 and limit == 128:
        if largest <= 96 and not dropout and capability in ((8, 6), (8, 9)):
            return [_Kernel(128, 64, 96, True, oldest)]
        large = _Kernel(128, 128, limit, True, oldest)
    return [large, small] if roomy else [small, large]


def _splits(blocks: int, multiprocessors: int, key_blocks: int) -> int:
    """``num_splits_heuristic`` of ``flash_api.cpp``."""
    if blocks >= 0.8 * multiprocessors:
        return 1
    most = min(128, multiprocessors, key_blocks)
    counts = [
        count
        for count in range(1, most + 1)
        if count == 1 or _ceil(key_blocks, count) != _ceil(key_blocks, count - 1)
    ]
    waves = [blocks * count / multiprocessors for count in counts]
    efficiency = [wave / _ceil_of(wave) for wave in waves]
    enough = 0.85 * max(efficiency, default=0.0)
    return next((n for n, e in zip(counts, efficiency, strict=True) if e >= enough), 1)


def _is_deterministic() -> bool:
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


def _rounded_dimension(dimension: int) -> int:
    multiple = 32 if dimension <= 128 else 64
    return _ceil(dimension, multiple) * multiple


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def _ceil_of(number: float) -> int:
    return -int(-number // 1)


def _take(nbytes: int) -> Scratch:
    return Scratch.exactly(nbytes, NAME)


def _copy(tensor: Any) -> Scratch:
    return Scratch.exactly(tensor.numel() * tensor.element_size(), "contiguous copy", before=True)
