"""Columns as a sequence of records, and tables of items that they refer to by number."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class RowSequence(Sequence[_T], Generic[_T]):
    """A sequence of records that are made from columns on access."""

    __slots__ = ()

    def record(self, row: int) -> _T:
        """Return the record of a row, without checking the row."""
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


def array_column(code: str, of: str = "") -> Any:
    """Return a dataclass field for a column with a type code of :mod:`array`.

    If the column has numbers, ``of`` is the field that they number; -1 stands for none.
    """
    return field(default_factory=lambda: array(code), metadata={"code": code, "of": of})


def columns_of(kind: Any, fact: str = "code") -> Mapping[str, str]:
    """Return the columns of a dataclass, each with its ``code`` or with the field it is ``of``."""
    return {each.name: each.metadata[fact] for each in fields(kind) if each.metadata}


class InternTable(list[_T]):
    """A list of distinct items that are referred to by number."""

    def __init__(self, items: Iterable[_T] = ()) -> None:
        super().__init__(items)
        self._numbers: dict[_T, int] = {}
        self._indexed = 0
        """Number of items in the index."""

    def number(self, item: _T) -> int:
        """Return the number of an item, adding it if it is new."""
        number = self._numbers.get(item)
        if number is None:
            for index in range(self._indexed, len(self)):
                # a table that is read from a file was extended as a list
                self._numbers.setdefault(self[index], index)
            number = self._numbers.setdefault(item, len(self))
            if number == len(self):
                self.append(item)
            self._indexed = len(self)
        return number
