"""Operators on lists of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorlens.frameworks.fake_torch.memory.temporaries.reductions import reduced
from tensorlens.frameworks.fake_torch.memory.temporaries.rules import (
    Rule,
    heaviest,
    taken,
    up,
    wide_itemsize,
)
from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card

_CHUNK = 65536


def _is_fast(tensors: Sequence[Any]) -> bool:
    """Tell whether one kernel does it all (``ForeachUtils.h``, can_use_fast_route)."""
    first = tensors[0]
    return all(
        each.dtype == first.dtype and (each.is_contiguous() or _is_dense(each)) for each in tensors
    )


def _is_dense(tensor: Any) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _chunks(tensors: Sequence[Any]) -> int:
    return len(tensors) * max(up(each.numel(), _CHUNK) for each in tensors)


def _norm(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterable[Hidden]:
    # ForeachReduceOp.cu, foreach_tensor_norm_cuda: the norm of each chunk, the list's longest
    # tensor deciding how many there are of each
    tensors, power = args[0], args[1] if len(args) > 1 else 2
    wide = wide_itemsize(result[0].dtype)
    if power in (1, 2, float("inf")) and _is_fast(tensors):
        return [taken(_chunks(tensors) * wide, "norms of chunks", before=True)]
    return heaviest(
        *(
            reduced(card, each.shape, each.stride(), (), each.dtype.itemsize, wide)
            for each in tensors
        )
    )


def _maximum(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterable[Hidden]:
    tensors = args[0]
    if not _is_fast(tensors):
        return []
    size = _chunks(tensors) * tensors[0].dtype.itemsize
    return [taken(size, "maxima of chunks", before=True)]


RULES: dict[str, Rule] = {"_foreach_norm": _norm, "_foreach_max": _maximum}
