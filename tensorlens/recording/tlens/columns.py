"""Events as columns of JSON, and back with every number checked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, compress, count, repeat
from operator import eq, sub
from typing import Any

from tensorlens.records.checking import integer
from tensorlens.records.events import ALLOC, FREE, OOM, START, EventLog

ROWS = 50_000
"""How many rows a line of events has."""

_MOST_ROWS = 1_000_000
_PLAIN = ("kind", "device", "address", "size", "stack", "context", "label")


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
    """Add the rows that :func:`rows_to_dict` gave to the end of a log, unchecked but for types.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: the data is damaged.
    """
    rows, first = integer(data["rows"]), len(log)
    if not 0 <= rows <= _MOST_ROWS:
        raise ValueError(f"{rows} rows in a line")
    # so that a short line cannot stand for a million rows
    if not isinstance(data["address"], list):
        raise TypeError("addresses that are no list")
    for column in _PLAIN:
        getattr(log, column).extend(_column(log.COLUMNS[column], data[column], rows))
    times = _column("q", data["time"], rows)
    log.time.extend(array("q", accumulate(times, initial=log.time[-1] if first else 0))[1:])
    log.pair.extend(array("i", [-1]) * rows)
    kinds = log.kind[first:]
    frees = list(compress(range(first, first + rows), map(eq, kinds, repeat(FREE))))
    back = _column("i", data["back"], len(frees))
    if back and not 0 <= min(back):
        raise ValueError("a free before its allocation")
    paired = [row for row, distance in zip(frees, back, strict=True) if distance]
    made = list(map(sub, paired, filter(None, back)))
    if made and min(made) < 0:
        raise ValueError("a free of an allocation before the first row")
    _pair(log, paired, made)


def check(log: EventLog) -> None:
    """Raise ValueError unless all that the rows refer to is there."""
    limits = {
        "kind": (0, OOM + 1),
        "device": (0, len(log.devices)),
        "size": (0, None),
        "stack": (-1, len(log.stacks)),
        "context": (-1, len(log.contexts)),
        "label": (-1, len(log.labels)),
    }
    for column, (lowest, limit) in limits.items():
        check_range(column, getattr(log, column), lowest, limit)
    if sum(log.size) >= 2**63:
        raise ValueError("more bytes than 64 bits can count")


def check_range(what: str, values: Sequence[int], lowest: int, limit: int | None) -> None:
    """Raise ValueError unless all values are at least ``lowest`` and below ``limit``."""
    if values and (min(values) < lowest or (limit is not None and max(values) >= limit)):
        raise ValueError(f"{what} is out of range")


def _pair(log: EventLog, frees: Sequence[int], made: Sequence[int]) -> None:
    kinds, devices, pairs = log.kind, log.device, log.pair
    if not {START, ALLOC}.issuperset(map(kinds.__getitem__, made)):
        raise ValueError("a free of what is no allocation")
    if not _alike(devices.__getitem__, frees, made):
        raise ValueError("a free on another device than its allocation")
    if any(pairs[row] >= 0 for row in made) or len(set(made)) != len(made):
        raise ValueError("an allocation that is freed twice")
    for free, allocation in zip(frees, made, strict=True):
        pairs[free] = allocation
        pairs[allocation] = free


def _alike(of: Callable[[int], int], some: Sequence[int], others: Sequence[int]) -> bool:
    return all(map(eq, map(of, some), map(of, others)))


def _shortest(values: Sequence[int]) -> int | list[int]:
    if len(values) > 1 and min(values) == max(values):
        return values[0]
    return list(values)


def _column(code: str, data: Any, rows: int) -> array[int]:
    if not isinstance(data, list):
        return array(code, [integer(data)]) * rows
    values = array(code, data)
    if len(values) != rows:
        raise ValueError(f"a column of {len(values)} in place of {rows} rows")
    return values
