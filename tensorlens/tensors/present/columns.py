"""Snapshots and differences as rows: one per tensor, or one per change; sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tensorlens.records.tensors import FIELDS, TensorRecord

if TYPE_CHECKING:
    from tensorlens.tensors.difference import Difference

Value = str | int | None

COLUMNS = FIELDS
"""The fields of a tensor's record: shapes as ``(3, 4)``, several names joined by `` = ``."""

TEXT = tuple(
    name for name in COLUMNS if name not in ("nbytes", "storage", "storage_nbytes", "offset")
)
"""The columns of :data:`COLUMNS` that are text."""

_OF_THE_TENSOR = ("name", "role", "device", "dtype")
_MORE_OF_IT = ("born", "model_line", "held_by", "names", "module", "note")
_BYTES = ("bytes_before", "bytes_after", "bytes_change")
CHANGE_COLUMNS = (
    *("change", *_OF_THE_TENSOR, "shape_before", "shape_after"),
    *(*_BYTES, *_MORE_OF_IT),
)
"""The columns of a difference: ``change`` is ``appeared``, ``gone`` or ``grown``, bytes are of
the storage, and everything else is of the later tensor where there is one."""

CHANGE_TEXT = tuple(name for name in CHANGE_COLUMNS if name not in _BYTES)
"""The columns of :data:`CHANGE_COLUMNS` that are text."""


def rows(tensors: Iterable[TensorRecord]) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every tensor, aliases included."""
    for tensor in tensors:
        yield tuple(_value(tensor, name) for name in COLUMNS)


def change_rows(difference: Difference) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`CHANGE_COLUMNS` for every change."""
    for kind, changes in difference.kinds():
        for change in changes:
            before, after, tensor = change.before, change.after, change.tensor
            yield (
                kind,
                *(_value(tensor, name) for name in _OF_THE_TENSOR),
                None if before is None else str(before.shape),
                None if after is None else str(after.shape),
                0 if before is None else before.storage_nbytes,
                0 if after is None else after.storage_nbytes,
                change.nbytes,
                *(_value(tensor, name) for name in _MORE_OF_IT),
            )


def _value(tensor: TensorRecord, name: str) -> Value:
    value = getattr(tensor, name)
    if name == "names":
        return " = ".join(value)
    return value if value is None or isinstance(value, int) else str(value)
