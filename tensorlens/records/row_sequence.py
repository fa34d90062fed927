"""Columns that behave as a sequence of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

_T = TypeVar("_T")


class RowSequence(Sequence[_T], Generic[_T]):
    """Rows of columns, each a record that is made when it is asked for."""

    __slots__ = ()

    def record(self, row: int) -> _T:
        """Return the record of a row, which is not checked."""
        raise NotImplementedError

    @overload
    def __getitem__(self, row: int) -> _T: ...
    @overload
    def __getitem__(self, row: slice) -> list[_T]: ...
    def __getitem__(self, row: int | slice) -> _T | list[_T]:
        if isinstance(row, slice):
            return [self.record(each) for each in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"{len(self)} rows, no number {row}")
        return self.record(row % len(self))

    def __iter__(self) -> Iterator[_T]:
        return map(self.record, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
