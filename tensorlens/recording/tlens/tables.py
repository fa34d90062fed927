"""Rows of a log and the tables that they refer to as JSON, and back with every value checked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields
from itertools import accumulate, compress, count, repeat
from operator import eq, lt, sub
from typing import Any, TypeVar

from tensorlens.records.documents import integer, items, mapping, restored, text
from tensorlens.records.events import (
    ALLOC,
    FREE,
    OOM,
    START,
    Context,
    EventLog,
    Frame,
    Label,
    Mark,
    Segment,
    SegmentBlock,
    Stacks,
)
from tensorlens.roles import BLOCK_ROLES

ROWS = 50_000
"""How many rows a line of events has."""

_MOST_ROWS = 1_000_000
_PLAIN = ("kind", "device", "address", "size", "stack", "context", "label")
_T = TypeVar("_T", Context, Label, Segment)


def frame_to_list(frame: Frame) -> list[Any]:
    """Return ``[file name, line number, function, whether it is the user's]``."""
    return [frame.filename, frame.lineno, frame.function, int(frame.user)]


def frame_from_list(data: Any) -> Frame:
    """Return the frame of :func:`frame_to_list`."""
    filename, lineno, function, user, *_ = items(lambda each: each, data)
    return Frame(text(filename), integer(lineno), text(function), bool(integer(user)))


def mark_to_list(mark: Mark) -> list[Any]:
    """Return ``[name, row, time]``."""
    return [mark.name, mark.row, mark.time_ns]


def mark_from_list(data: Any) -> Mark:
    """Return the mark of :func:`mark_to_list`."""
    name, row, time, *_ = items(lambda each: each, data)
    return Mark(text(name), integer(row), integer(time))


def record_to_dict(record: Context | Label | Segment) -> dict[str, Any]:
    """Return the fields that are not what they are by default."""
    return _without_defaults(record, asdict(record))


def _without_defaults(record: Any, data: dict[str, Any]) -> dict[str, Any]:
    known = {
        each.name: data[each.name]
        for each in fields(record)
        if each.default is MISSING or getattr(record, each.name) != each.default
    }
    if isinstance(record, Segment):
        pairs = zip(record.blocks, data["blocks"], strict=True)
        known["blocks"] = [_without_defaults(block, each) for block, each in pairs]
    return known


def record_from_dict(kind: type[_T], data: Any) -> _T:
    """Return the record of :func:`record_to_dict`; fields that are not known are passed over."""
    if isinstance(data, dict):
        names = {each.name for each in fields(kind)}
        data = {name: value for name, value in data.items() if name in names}
    record = restored(kind, data)
    if isinstance(record, Label) and record.role not in BLOCK_ROLES:
        raise ValueError(f"{record.role!r} is no role")
    return record


def stacks_to_dict(stacks: Stacks, first: int, last: int) -> dict[str, Any]:
    """Return the nodes from ``first`` up to ``last`` in columns."""
    rows = slice(first, last)
    return {
        "parent": list(stacks.parent[rows]),
        "frame": list(stacks.frame[rows]),
        "module": list(stacks.module[rows]),
    }


def add_stacks(stacks: Stacks, data: Any) -> None:
    """Add the nodes of :func:`stacks_to_dict`, unchecked but for types."""
    for column in ("parent", "frame", "module"):
        getattr(stacks, column).extend(array("i", items(integer, data[column])))


def sources_from_dict(data: Any) -> dict[str, list[str]]:
    """Return file names and their lines."""
    return mapping(lambda lines: list(items(text, lines)), data)


def check_tables(log: EventLog) -> None:
    """Raise ValueError unless what stacks, contexts, marks and segments refer to is there."""
    stacks = log.stacks
    nodes = len(stacks)
    if len(stacks.frame) != nodes or len(stacks.module) != nodes:
        raise ValueError("stacks in columns of different length")
    _check_range("a stack's parent", stacks.parent, -1, None)
    _check_range("a stack's frame", stacks.frame, 0, len(stacks.frames))
    _check_range("a stack's module", stacks.module, -1, len(stacks.modules))
    if not all(map(lt, stacks.parent, count())):
        raise ValueError("a stack that goes on from itself")
    parts: list[Segment | SegmentBlock] = [*log.segments]
    for segment in log.segments:
        parts += segment.blocks
    numbers = [context.forward for context in log.contexts]
    numbers += [each.stack for each in parts]
    _check_range("a stack", numbers, -1, nodes)
    sizes = [size for each in parts for size in (each.address, each.size)]
    sizes += [each.requested for each in parts if isinstance(each, SegmentBlock)]
    _check_range("a size", sizes, 0, None)
    _check_range("a mark", [mark.row for mark in log.marks], 0, len(log) + 1)
    _check_range("a remainder's row", list(log.held), 0, len(log))
    _check_range("a remainder", list(log.held.values()), 0, None)


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
    """Add the rows that :func:`rows_to_dict` gave to the end of a log, unchecked but for types."""
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


def check_rows(log: EventLog) -> None:
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
        _check_range(column, getattr(log, column), lowest, limit)
    if sum(log.size) >= 2**63:
        raise ValueError("more bytes than 64 bits can count")


def _check_range(what: str, values: Sequence[int], lowest: int, limit: int | None) -> None:
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
