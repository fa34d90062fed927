"""Matrix products: copies of operands whose strides cuBLAS cannot take.

``aten/src/ATen/native/cuda/Blas.cpp`` (``cuBlasCommonArgs.h``): a matrix has to run without gaps
along its rows or its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorlens.frameworks.fake_torch.memory.temporaries.rules import Rule, nbytes, taken
from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card


def _runs(stride: int, other: int, size: int) -> bool:
    return stride == 1 and other >= max(1, size)


def _is_dense(matrix: Any) -> bool:
    """Tell whether a matrix has neither gaps nor overlaps."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if matrix.is_contiguous():
        return True
    return (right, down) in ((1, columns), (rows, 1))


def matrix(operand: Any) -> list[Hidden]:
    """Return the copy that a product makes of a matrix, if it does."""
    (rows, columns), (down, right) = operand.shape, operand.stride()
    if _is_dense(operand) or _runs(down, right, rows) or _runs(right, down, columns):
        return []
    return [taken(nbytes(operand), "copy of a matrix")]


def batch(operand: Any) -> list[Hidden]:
    """Return the copy that a batched product makes of its matrices, if it does."""
    (_, rows, columns), (_, down, right) = operand.shape, operand.stride()
    if _runs(down, right, rows) or _runs(right, down, columns):
        return []
    if operand.is_contiguous() and down and right:
        return []
    return [taken(nbytes(operand), "copy of matrices")]


def _product(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return [*matrix(args[0]), *matrix(args[1])]


def _product_added(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return [*matrix(args[1]), *matrix(args[2])]


def _batched(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return [*batch(args[0]), *batch(args[1])]


def _batched_added(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    return [*batch(args[1]), *batch(args[2])]


def _with_vector(
    card: Card, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[Hidden]:
    # addmv_out_cuda
    operand, vector = args[-2:] if len(args) < 3 else args[1:3]
    copies = [] if vector.stride(0) else [taken(nbytes(vector), "copy of a vector")]
    (rows, columns), (down, right) = operand.shape, operand.stride()
    if not (_runs(down, right, rows) or _runs(right, down, columns)):
        copies.append(taken(nbytes(operand), "copy of a matrix"))
    return copies


RULES: dict[str, Rule] = {
    "mm": _product,
    "addmm": _product_added,
    "_addmm_activation": _product_added,
    "bmm": _batched,
    "baddbmm": _batched_added,
    "mv": _with_vector,
    "addmv": _with_vector,
    "addmv_": _with_vector,
}
