"""Copies that kernels make to have tensors in the layout they work on, and copies to the card.

A matrix has to run without gaps along its rows or its columns for cuBLAS
(``aten/src/ATen/native/cuda/Blas.cpp``, ``cuBlasCommonArgs.h``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tensorlens.planning.torch.memory.temporaries.rules import (
    Call,
    Rule,
    contiguous,
    contiguous_arguments,
    device_type,
    is_tensor,
    layout,
    nbytes,
    scratch,
)
from tensorlens.planning.torch.tracker import Scratch


def _runs(stride: int, other: int, size: int) -> bool:
    return stride == 1 and other >= max(1, size)


def _is_dense(matrix: Any) -> bool:
    """Tell whether a matrix has neither gaps nor overlaps."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return matrix.is_contiguous() or (right, down) in ((1, columns), (rows, 1))


def _matrix(operand: Any) -> list[Scratch]:
    """Return the copy that a product makes of a matrix, if it does."""
    (rows, columns), (down, right) = operand.shape, operand.stride()
    if _is_dense(operand) or _runs(down, right, rows) or _runs(right, down, columns):
        return []
    return [scratch(nbytes(operand), "copy of a matrix")]


def _batch(operand: Any) -> list[Scratch]:
    """Return the copy that a batched product makes of its matrices, if it does."""
    (_, rows, columns), (_, down, right) = operand.shape, operand.stride()
    if _runs(down, right, rows) or _runs(right, down, columns):
        return []
    if operand.is_contiguous() and down and right:
        return []
    return [scratch(nbytes(operand), "copy of matrices")]


def _product(copy: Callable[[Any], list[Scratch]], first: int) -> Rule:
    """Return the rule of a product whose operands are two arguments from ``first`` on."""
    return lambda call: [*copy(call.args[first]), *copy(call.args[first + 1])]


def _in_layout(*places: int) -> Rule:
    """Return the rule of a kernel that has these arguments in the layout of the last one."""

    def rule(call: Call) -> Iterator[Scratch]:
        wanted = layout(call.args[places[-1]])
        for place in places:
            tensor = call.args[place]
            if is_tensor(tensor) and not tensor.is_contiguous(memory_format=wanted):
                yield scratch(nbytes(tensor), "copy in the input's layout", before=True)

    return rule


def _rolled(call: Call) -> Iterator[Scratch]:
    # TensorTransformations.cu: one dimension after another
    yield from contiguous(call.args[0])
    for _ in range(len(call.args[1]) - 1):
        yield scratch(nbytes(call.result), "rolled so far", before=True)


def _to_card(call: Call) -> Iterator[Scratch]:
    return _copied(call.result, call.args[0], not call.kwargs.get("non_blocking"))


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
    "mm": _product(_matrix, 0),
    "addmm": _product(_matrix, 1),
    "_addmm_activation": _product(_matrix, 1),
    "bmm": _product(_batch, 0),
    "baddbmm": _product(_batch, 1),
    "max_pool2d_with_indices": _in_layout(0),
    "max_pool2d_with_indices_backward": _in_layout(0, 1),
    "max_pool3d_with_indices": _in_layout(0),
    "max_pool3d_with_indices_backward": _in_layout(0, 1),
    "avg_pool2d": _in_layout(0),
    "avg_pool2d_backward": _in_layout(0, 1),
    "_adaptive_avg_pool2d_backward": _in_layout(0, 1),
    "upsample_bilinear2d": _in_layout(0),
    "upsample_bilinear2d_backward": contiguous_arguments(0),
    "upsample_nearest2d": _in_layout(0),
    "upsample_nearest2d_backward": _in_layout(0),
    "roll": _rolled,
    "_to_copy": _to_card,
    "copy_": _copy,
}
