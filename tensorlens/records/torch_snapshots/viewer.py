"""Reads ``viz_trace.json``, the input of torch's viewer in its first years."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from tensorlens.errors import FileFormatError
from tensorlens.records.checking import text
from tensorlens.records.events import ALLOC, FREE, START, EventLog
from tensorlens.records.origin import Origin, Recorded
from tensorlens.records.torch_snapshots.frames import frame_of
from tensorlens.records.torch_snapshots.trace import WRONG, number

_KEYS = {"actions", "elements_size", "elements_info", "suffix_table", "string_table"}
_FRAME = re.compile(r"(.+):(\d{1,9}):(.*)", re.DOTALL)
_DEVICE = "cuda:0"
_US = 1000
_NOTE = "the viewer's file has no times: its events are put one microsecond apart"


def is_viewer(data: Any) -> bool:
    """Tell whether what was read from JSON is what the viewer was fed."""
    return isinstance(data, dict) and data.keys() >= _KEYS


def from_viewer(data: Any) -> Recorded:
    """Return the log in what the viewer was fed, sizes as it has them.

    The file numbers its allocations: the first mention of a number hands it out, the second gives
    it back. It has no addresses, so each allocation is given one of its own.

    Raises:
        FileFormatError: it is something else, or damaged.
    """
    if not is_viewer(data):
        raise FileFormatError("not a memory viewer's file")
    try:
        return _log(data)
    except WRONG as error:
        raise FileFormatError(f"damaged memory viewer's file: {error}") from None


def _log(data: dict[str, Any]) -> Recorded:
    log = EventLog()
    stacks = _stacks(data, log)
    sizes = [number(size, 2**40) for size in data["elements_size"]]
    infos = data["elements_info"]
    addresses = list(accumulate((max(size, 1) for size in sizes), initial=0))
    there = set()
    for element in data.get("initially_allocated") or ():
        place = number(element, len(sizes))
        if place in there:
            raise ValueError("an allocation that was there twice")
        there.add(place)
        stack = stacks[number(infos[place], len(stacks))]
        log.append(START, _DEVICE, addresses[place], sizes[place], 0, stack)
    for order, element in enumerate(data["actions"]):
        place = number(element, len(sizes))
        kind = FREE if place in there else ALLOC
        (there.discard if kind == FREE else there.add)(place)
        stack = stacks[number(infos[place], len(stacks))] if kind == ALLOC else -1
        log.append(kind, _DEVICE, addresses[place], sizes[place], order * _US, stack)
    return log, Origin(source={_DEVICE: "torch memory viewer"}, notes=(_NOTE,), run=None)


def _stacks(data: dict[str, Any], log: EventLog) -> list[int]:
    """Return the stack of each entry in the table, which goes from the outermost frame inwards."""
    strings = [text(each) for each in data["string_table"]]
    found: list[int] = []
    for each in data["suffix_table"]:
        name, outer = each
        # an entry refers to one before it, so there is no ring
        parent = -1 if outer is None else found[number(outer, len(found))]
        match = _FRAME.fullmatch(strings[number(name, len(strings))])
        if match is None:
            found.append(parent)
            continue
        frame = frame_of(match[1], int(match[2]), match[3])
        found.append(log.stacks.push(parent, frame))
    return found
