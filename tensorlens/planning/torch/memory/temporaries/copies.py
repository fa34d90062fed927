"""Copies that kernels make to have tensors in the layout they work on, and copies to the card.

A matrix has to run without gaps along its rows or its columns for cuBLAS
(``aten/src/ATen/native/cuda/Blas.cpp``, ``cuBlasCommonArgs.h``). What lists of tensors need is here
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from tensorlens.planning.torch.memory.temporaries.reductions import reduced
from tensorlens.planning.torch.memory.temporaries.rules import (
    Call,
    Rule,
    ceil_div,
    contiguous,
    device_type,
    heaviest,
    is_tensor,
    nbytes,
    scratch,
    wide_itemsize,
)
from tensorlens.planning.torch.tracker import Scratch

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
    return len(tensors) * max(ceil_div(each.numel(), _CHUNK) for each in tensors)


def _norm(call: Call) -> Iterable[Scratch]:
    # ForeachReduceOp.cu, foreach_tensor_norm_cuda: the norm of each chunk, the list's longest
    # tensor deciding how many there are of each
    tensors, power = call.args[0], call.args[1] if len(call.args) > 1 else 2
    wide = wide_itemsize(call.result[0].dtype)
    if power in (1, 2, float("inf")) and _is_fast(tensors):
        return [scratch(_chunks(tensors) * wide, "norms of chunks", before=True)]
    return heaviest(
        *(
            reduced(call.card, each.shape, each.stride(), (), each.dtype.itemsize, wide)
            for each in tensors
        )
    )


def _maximum(call: Call) -> Iterable[Scratch]:
    tensors = call.args[0]
    if not _is_fast(tensors):
        return []
    size = _chunks(tensors) * tensors[0].dtype.itemsize
    return [scratch(size, "maxima of chunks", before=True)]


_OF_LISTS: dict[str, Rule] = {"_foreach_norm": _norm, "_foreach_max": _maximum}


def _runs(stride: int, other: int, size: int) -> bool:
    return stride == 1 and other >= max(1, size)


def _is_dense_matrix(matrix: Any) -> bool:
    """Tell whether a matrix has neither gaps nor overlaps."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if matrix.is_contiguous():
        return True
    return (right, down) in ((1, columns), (rows, 1))


def matrix(operand: Any) -> list[Scratch]:
    """Return the copy that a product makes of a matrix, if it does."""
    (rows, columns), (down, right) = operand.shape, operand.stride()
    if _is_dense_matrix(operand) or _runs(down, right, rows) or _runs(right, down, columns):
        return []
    return [scratch(nbytes(operand), "copy of a matrix")]


def batch(operand: Any) -> list[Scratch]:
    """Return the copy that a batched product makes of its matrices, if it does."""
    (_, rows, columns), (_, down, right) = operand.shape, operand.stride()
    if _runs(down, right, rows) or _runs(right, down, columns):
        return []
    if operand.is_contiguous() and down and right:
        return []
    return [scratch(nbytes(operand), "copy of matrices")]


def _product(call: Call) -> list[Scratch]:
    return [*matrix(call.args[0]), *matrix(call.args[1])]


def _product_added(call: Call) -> list[Scratch]:
    return [*matrix(call.args[1]), *matrix(call.args[2])]


def _batched(call: Call) -> list[Scratch]:
    return [*batch(call.args[0]), *batch(call.args[1])]


def _batched_added(call: Call) -> list[Scratch]:
    return [*batch(call.args[1]), *batch(call.args[2])]


def _with_vector(call: Call) -> list[Scratch]:
    # addmv_out_cuda
    operand, vector = call.args[-2:] if len(call.args) < 3 else call.args[1:3]
    copies = [] if vector.stride(0) else [scratch(nbytes(vector), "copy of a vector")]
    (rows, columns), (down, right) = operand.shape, operand.stride()
    if not (_runs(down, right, rows) or _runs(right, down, columns)):
        copies.append(scratch(nbytes(operand), "copy of a matrix"))
    return copies


_PRODUCTS: dict[str, Rule] = {
    "mm": _product,
    "addmm": _product_added,
    "_addmm_activation": _product_added,
    "bmm": _batched,
    "baddbmm": _batched_added,
    "mv": _with_vector,
    "addmv": _with_vector,
    "addmv_": _with_vector,
}


def _in_layout(*places: int) -> Rule:
    """Return the rule of a kernel that has these arguments in the layout of the first one."""

    def rule(call: Call) -> Iterator[Scratch]:
        layout = _layout(call.args[places[-1]])
        for place in places:
            tensor = call.args[place]
            if is_tensor(tensor) and not tensor.is_contiguous(memory_format=layout):
                yield scratch(nbytes(tensor), "copy in the input's layout", before=True)

    return rule


def _layout(tensor: Any) -> torch.memory_format:
    """Return a tensor's layout (``suggest_memory_format``)."""
    if tensor.is_contiguous():
        return torch.contiguous_format
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _plain(*places: int) -> Rule:
    def rule(call: Call) -> list[Scratch]:
        return contiguous(*(call.args[place] for place in places))

    return rule


def _rolled(call: Call) -> Iterator[Scratch]:
    # TensorTransformations.cu: one dimension after another
    yield from contiguous(call.args[0])
    for _ in range(len(call.args[1]) - 1):
        yield scratch(nbytes(call.result), "rolled so far", before=True)


def _to_card(call: Call) -> Iterator[Scratch]:
    blocking = not call.kwargs.get("non_blocking")
    return _copied(call.result, call.args[0], blocking)


def _copy(call: Call) -> Iterator[Scratch]:
    return _copied(call.args[0], call.args[1], not call.argument(2, "non_blocking"))


def _copied(target: Any, source: Any, blocking: bool) -> Iterator[Scratch]:
    """Give what a copy from the host takes on the card (``Copy.cu``, copy_kernel_cuda).

    Casts are made on the host, but on the card where the copy does not block.
    """
    if not is_tensor(source) or not is_tensor(target):
        return
    if device_type(source) != "cpu" or device_type(target) != "cuda":
        return
    same = source.dtype == target.dtype
    if same and target.is_contiguous() and source.is_contiguous():
        return
    if blocking:
        if not target.is_contiguous():
            yield scratch(nbytes(target), "copy before it is laid out")
    elif not same or not target.is_contiguous():
        yield scratch(target.numel() * source.dtype.itemsize, "copy before it is cast")


RULES: dict[str, Rule] = {
    **_PRODUCTS,
    **_OF_LISTS,
    "max_pool2d_with_indices": _in_layout(0),
    "max_pool2d_with_indices_backward": _in_layout(0, 1),
    "max_pool3d_with_indices": _in_layout(0),
    "max_pool3d_with_indices_backward": _in_layout(0, 1),
    "avg_pool2d": _in_layout(0),
    "avg_pool2d_backward": _in_layout(0, 1),
    "avg_pool3d": _plain(0),
    "avg_pool3d_backward": _plain(0),
    "_adaptive_avg_pool2d_backward": _in_layout(0, 1),
    "upsample_bilinear2d": _in_layout(0),
    "upsample_bilinear2d_backward": _plain(0),
    "upsample_nearest2d": _in_layout(0),
    "upsample_nearest2d_backward": _in_layout(0),
    "upsample_bicubic2d_backward": _plain(0),
    "im2col": _plain(0),
    "col2im": _plain(0),
    "_weight_norm_interface_backward": _plain(0),
    "roll": _rolled,
    "_to_copy": _to_card,
    "copy_": _copy,
}
