"""Tables that events refer to, as JSON and back with every value checked."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import count
from operator import lt
from typing import Any

from tensorlens.recording.tlens.columns import check_range
from tensorlens.records.checking import flag, integer, items, mapping, optional, text
from tensorlens.records.events import (
    PHASES,
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

_DEFAULTS = {
    kind: {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    for kind in (Context, Label, Segment, SegmentBlock)
}


def frame_to_list(frame: Frame) -> list[Any]:
    """Return ``[file name, line number, function, whether it is the user's]``."""
    return [frame.filename, frame.lineno, frame.function, int(frame.user)]


def frame_from_list(data: Any) -> Frame:
    """Return the frame of :func:`frame_to_list`."""
    filename, lineno, function, user, *_ = items(lambda each: each, data)
    return Frame(text(filename), integer(lineno), text(function), bool(integer(user)))


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


def check_stacks(stacks: Stacks) -> None:
    """Raise ValueError unless nodes have frames, and parents that come before them."""
    nodes = len(stacks)
    if len(stacks.frame) != nodes or len(stacks.module) != nodes:
        raise ValueError("stacks in columns of different length")
    check_range("a stack's parent", stacks.parent, -1, None)
    check_range("a stack's frame", stacks.frame, 0, len(stacks.frames))
    check_range("a stack's module", stacks.module, -1, len(stacks.modules))
    if not all(map(lt, stacks.parent, count())):
        raise ValueError("a stack that goes on from itself")


def context_to_dict(context: Context) -> dict[str, Any]:
    """Return what is known of a context."""
    return _known(context)


def context_from_dict(data: Any) -> Context:
    """Return the context of :func:`context_to_dict`."""
    given = _given(Context, data)
    phase = optional(text, given["phase"])
    if phase is not None and phase not in PHASES:
        raise ValueError(f"{phase!r} is no phase")
    return Context(
        thread=integer(given["thread"]),
        op=optional(text, given["op"]),
        node=optional(text, given["node"]),
        forward=integer(given["forward"]),
        outer=optional(text, given["outer"]),
        grad=flag(given["grad"]),
        phase=phase,
        module=optional(text, given["module"]),
    )


def label_to_dict(label: Label) -> dict[str, Any]:
    """Return what a census found."""
    return _known(label)


def label_from_dict(data: Any) -> Label:
    """Return the label of :func:`label_to_dict`."""
    given = _given(Label, data)
    role = text(given["role"])
    if role not in BLOCK_ROLES:
        raise ValueError(f"{role!r} is no role")
    shape = given["shape"]
    return Label(
        text(given["name"]),
        role,
        optional(text, given["dtype"]),
        None if shape is None else items(integer, shape),
    )


def mark_to_list(mark: Mark) -> list[Any]:
    """Return ``[name, row, time]``."""
    return [mark.name, mark.row, mark.time_ns]


def mark_from_list(data: Any) -> Mark:
    """Return the mark of :func:`mark_to_list`."""
    name, row, time, *_ = items(lambda each: each, data)
    return Mark(text(name), integer(row), integer(time))


def segment_to_dict(segment: Segment) -> dict[str, Any]:
    """Return a segment with its blocks."""
    return {**_known(segment), "blocks": [_known(block) for block in segment.blocks]}


def segment_from_dict(data: Any) -> Segment:
    """Return the segment of :func:`segment_to_dict`."""
    given = _given(Segment, data)
    return Segment(
        device=text(given["device"]),
        address=_size(given["address"]),
        size=_size(given["size"]),
        stream=integer(given["stream"]),
        kind=text(given["kind"]),
        expandable=flag(given["expandable"]),
        pool=optional(text, given["pool"]),
        blocks=items(_block, given["blocks"]),
        stack=integer(given["stack"]),
    )


def sources_from_dict(data: Any) -> dict[str, list[str]]:
    """Return file names and their lines."""
    return mapping(lambda lines: list(items(text, lines)), data)


def check_tables(log: EventLog) -> None:
    """Raise ValueError unless what contexts, marks, segments and ``held`` refer to is there."""
    check_stacks(log.stacks)
    nodes = len(log.stacks)
    stacks = [context.forward for context in log.contexts]
    stacks += [segment.stack for segment in log.segments]
    stacks += [block.stack for segment in log.segments for block in segment.blocks]
    check_range("a stack", stacks, -1, nodes)
    check_range("a mark", [mark.row for mark in log.marks], 0, len(log) + 1)
    check_range("a remainder's row", list(log.held), 0, len(log))
    check_range("a remainder", list(log.held.values()), 0, None)


def _block(data: Any) -> SegmentBlock:
    given = _given(SegmentBlock, data)
    return SegmentBlock(
        address=_size(given["address"]),
        size=_size(given["size"]),
        requested=_size(given["requested"]),
        state=text(given["state"]),
        stack=integer(given["stack"]),
    )


def _known(record: Context | Label | Segment | SegmentBlock) -> dict[str, Any]:
    defaults = _DEFAULTS[type(record)]
    return {
        each.name: getattr(record, each.name)
        for each in fields(record)
        if each.name not in defaults or getattr(record, each.name) != defaults[each.name]
    }


def _given(kind: type[Any], data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise TypeError(f"{type(data).__name__} in place of a dict")
    return {**_DEFAULTS[kind], **data}


def _size(data: Any) -> int:
    if integer(data) < 0:
        raise ValueError("a size below 0")
    return integer(data)
