"""Several logs as one, in the order of time: of the devices of a process, of ranks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain

from tensorlens.records.events import OWN_MARK, START, EventLog, Mark


@dataclass(frozen=True, slots=True)
class LogPart:
    """One of the logs that are joined."""

    log: EventLog
    prefix: str = ""
    """Prefix of its devices' names: ``rank0/``."""
    delay_ns: int = 0
    """How much later than the earliest it began; its times are moved by so much."""
    threads: int = 0
    """How many threads the parts before it met: numbers of its own go on from there."""


def merge_logs(parts: Sequence[LogPart], *, same_marks: bool = False) -> EventLog:
    """Return one log: blocks that were there before first, then all events by time.

    Events of the same time keep their order; what a row's numbers refer to is renumbered.

    Args:
        parts: the logs.
        same_marks: each mark of the program was made in all of them, and is one moment: behind
            what stood before it in any.
    """
    whole = EventLog()
    rows = [_taken_over(whole, part) for part in parts]
    order = [*merge(*(_keys(part, number) for number, part in enumerate(parts)))]
    places = [array("i", bytes(4 * len(part.log))) for part in parts]
    for place, (_, _, number, row) in enumerate(order):
        places[number][row] = place
    for column, code in EventLog.COLUMNS.items():
        values = [rows[number][column][row] for _, _, number, row in order]
        setattr(whole, column, array(code, values))
    whole.pair = array(
        "i",
        [
            -1 if (pair := parts[number].log.pair[row]) < 0 else places[number][pair]
            for _, _, number, row in order
        ],
    )
    for number, part in enumerate(parts):
        whole.held.update({places[number][row]: size for row, size in part.log.held.items()})
    marks = [
        [_moved(mark, part, places[number]) for mark in part.log.marks]
        for number, part in enumerate(parts)
    ]
    dropped = [part.log.dropped_marks for part in parts]
    if same_marks:
        whole.marks = _same(marks)
        whole.dropped_marks = [*min(dropped, key=len, default=[])]
    else:
        whole.marks = sorted(chain.from_iterable(marks), key=lambda mark: mark.row)
        whole.dropped_marks = [*chain.from_iterable(dropped)]
    return whole


def _same(columns: Sequence[Sequence[Mark]]) -> list[Mark]:
    """Return marks of which each column has the last ones: it may have dropped the first.

    Marks that no program made are of one column alone.
    """
    own = [mark for mark in chain.from_iterable(columns) if mark.name.startswith(OWN_MARK)]
    given = [[mark for mark in column if not mark.name.startswith(OWN_MARK)] for column in columns]
    found = []
    for place in range(max(map(len, given), default=0), 0, -1):
        one, *others = (column[-place] for column in given if len(column) >= place)
        found.append(replace(one, row=max([one.row, *(each.row for each in others)])))
    return sorted([*found, *own], key=lambda mark: mark.row)


def _keys(part: LogPart, number: int) -> list[tuple[bool, int, int, int]]:
    log = part.log
    return [
        (kind != START, time + part.delay_ns, number, row)
        for row, (kind, time) in enumerate(zip(log.kind, log.time, strict=True))
    ]


def _taken_over(whole: EventLog, part: LogPart) -> dict[str, Sequence[int]]:
    """Take over what rows refer to, and return the columns with their new numbers."""
    log = part.log
    stacks, given = whole.stacks, log.stacks
    nodes: list[int] = []
    for parent, frame, module in zip(given.parent, given.frame, given.module, strict=True):
        path = None if module < 0 else given.modules[module]
        nodes.append(stacks.push(-1 if parent < 0 else nodes[parent], given.frames[frame], path))
    nodes.append(-1)
    contexts = [
        whole.context_number(
            replace(
                each,
                forward=nodes[each.forward],
                # the recording's own thread is that of all
                thread=each.thread and each.thread + part.threads,
            )
        )
        for each in log.contexts
    ]
    contexts.append(-1)
    devices = [whole.device_number(part.prefix + name) for name in log.devices]
    first_label = len(whole.labels)
    whole.labels += log.labels
    whole.segments += [
        replace(
            each,
            device=part.prefix + each.device,
            stack=nodes[each.stack],
            blocks=tuple(replace(block, stack=nodes[block.stack]) for block in each.blocks),
        )
        for each in log.segments
    ]
    whole.segments_known = whole.segments_known or log.segments_known
    whole.sources.update(log.sources)
    return {
        "kind": log.kind,
        "device": [devices[number] for number in log.device],
        "address": log.address,
        "size": log.size,
        "time": [
            0 if log.was_before(row) else time + part.delay_ns for row, time in enumerate(log.time)
        ],
        "stack": [nodes[number] for number in log.stack],
        "context": [contexts[number] for number in log.context],
        "label": [-1 if number < 0 else first_label + number for number in log.label],
        "pair": log.pair,
    }


def _moved(mark: Mark, part: LogPart, places: Sequence[int]) -> Mark:
    """Return the mark behind the event that it stood behind."""
    row = 0 if mark.row <= 0 or not places else places[mark.row - 1] + 1
    return replace(mark, row=row, time_ns=mark.time_ns + part.delay_ns)
