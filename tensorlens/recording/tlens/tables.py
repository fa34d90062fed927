"""Rows of a log and the tables that they refer to as JSON, and back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, compress, count, repeat
from operator import eq, sub
from typing import Any

from tensorlens.records.events import (
    FREE,
    EventLog,
    Frame,
    Stacks,
)

ROWS = 50_000
"""How many rows a line of events has."""

_OF_STACKS = ("parent", "frame", "module")
_PLAIN = ("kind", "device", "address", "size", "stack", "context", "label")


def frame_to_list(frame: Frame) -> list[Any]:
    """Return ``[file name, line number, function, whether it is the user's]``."""
    return [frame.filename, frame.lineno, frame.function, int(frame.user)]


def frame_from_list(data: Any) -> Frame:
    """Return the frame of :func:`frame_to_list`."""
    filename, lineno, function, user, *_ = data
    return Frame(filename, lineno, function, bool(user))


def stacks_to_dict(stacks: Stacks, first: int, last: int) -> dict[str, Any]:
    """Return the nodes from ``first`` up to ``last`` in columns."""
    return {column: list(getattr(stacks, column)[first:last]) for column in _OF_STACKS}


def add_stacks(stacks: Stacks, data: Any) -> None:
    """Add the nodes of :func:`stacks_to_dict`."""
    for column in _OF_STACKS:
        getattr(stacks, column).extend(array("i", data[column]))


def rows_to_dict(log: EventLog, first: int, last: int) -> dict[str, Any]:
    """Return the rows from ``first`` up to ``last`` for JSON."""
    rows = slice(first, last)
    kinds, times = log.kind[rows], log.time[rows]
    before = log.time[first - 1] if first else 0
    frees = map(eq, kinds, repeat(FREE))
    back = [
        row - pair if pair >= 0 else 0
        for row, pair in compress(zip(count(first), log.pair[rows]), frees)
    ]
    return {
        "rows": len(kinds),
        **{column: _shortest(getattr(log, column)[rows]) for column in _PLAIN},
        "address": list(log.address[rows]),
        "time": _shortest(array("q", map(sub, times, [before, *times[:-1]]))),
        "back": _shortest(back),
    }


def add_rows(log: EventLog, data: Any) -> None:
    """Add the rows that :func:`rows_to_dict` gave to the end of a log."""
    rows, first = data["rows"], len(log)
    for column in _PLAIN:
        getattr(log, column).extend(_column(log.COLUMNS[column], data[column], rows))
    times = _column("q", data["time"], rows)
    log.time.extend(array("q", accumulate(times, initial=log.time[-1] if first else 0))[1:])
    log.pair.extend(array("i", [-1]) * rows)
    frees = list(compress(range(first, first + rows), map(eq, log.kind[first:], repeat(FREE))))
    pairs = log.pair
    for free, distance in zip(frees, _column("i", data["back"], len(frees)), strict=True):
        if distance:
            pairs[free], pairs[free - distance] = free - distance, free


def _shortest(values: Sequence[int]) -> int | list[int]:
    if len(values) > 1 and min(values) == max(values):
        return values[0]
    return list(values)


def _column(code: str, data: Any, rows: int) -> array[int]:
    if not isinstance(data, list):
        return array(code, [data]) * rows
    values = array(code, data)
    if len(values) != rows:
        raise ValueError(f"a column of {len(values)} in place of {rows} rows")
    return values
