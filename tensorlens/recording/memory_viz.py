"""Recordings for torch's memory viewer: pickled snapshots, protocol 4."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tensorlens.recording.analysis.roles import roles_of
from tensorlens.recording.export import program_frames
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import (
    ALLOC,
    FREE,
    OOM,
    SEGMENT_ALLOC,
    START,
    EventLog,
    Segment,
    SegmentBlock,
)
from tensorlens.records.logs.stacks import Frame

_GAP = 1 << 20
"""Largest gap in bytes between blocks of one segment."""


def synthetic_segments(log: EventLog) -> list[Segment]:
    """Return segments around blocks that lie in no segment of the log.

    They and ``log.segments`` together list every block that is alive at the end. On a device
    without segments they also cover the addresses of freed blocks.
    """
    made: list[Segment] = []
    for number, device in enumerate(log.devices):
        known = [each for each in log.segments if each.device == device]
        listed = {
            block.address
            for each in known
            for block in each.blocks
            if block.state == "active_allocated"
        }
        rows = log.allocations(number)
        there = [row for row in rows if log.pair[row] < 0 and log.address[row] not in listed]
        covered = there if known else rows
        spans = {(log.address[row], log.address[row] + log.size[row]) for row in covered}
        blocks = [_block(log, row) for row in sorted(there, key=log.address.__getitem__)]
        made += _areas(device, sorted(spans), blocks)
    return made


def _block(log: EventLog, row: int) -> SegmentBlock:
    size = log.size[row]
    return SegmentBlock(log.address[row], size, size, "active_allocated", log.stack[row])


def _areas(
    device: str, spans: Sequence[tuple[int, int]], blocks: Sequence[SegmentBlock]
) -> Iterator[Segment]:
    waiting = list(reversed(blocks))
    for address, end in _merged_spans(spans):
        tiles: list[SegmentBlock] = []
        position = address
        while waiting and waiting[-1].address < end:
            block = waiting.pop()
            if block.address < position:
                # two at one address: one of their frees is missing
                yield Segment(device, block.address, block.size, blocks=(block,))
                continue
            tiles += _free(position, block.address)
            tiles.append(block)
            position = block.address + block.size
        tiles += _free(position, end)
        yield Segment(device, address, end - address, blocks=tuple(tiles))


def _merged_spans(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    address = end = -1
    for start, stop in spans:
        if address >= 0 and start <= end + _GAP:
            end = max(end, stop)
            continue
        if address >= 0:
            yield address, end
        address, end = start, stop
    if address >= 0:
        yield address, end


def _free(start: int, end: int) -> list[SegmentBlock]:
    return [SegmentBlock(start, end - start, 0, "inactive")] if start < end else []


PROTOCOL = 4
"""The newest pickle protocol that the viewer reads."""
_NUMBERED = re.compile(r"(?:.*/)?[a-z]+:(\d{1,2})")
_US = 1_000_000
"""Microseconds in a second."""


def memory_viz(recording: Recording) -> bytes:
    """Return a file for https://pytorch.org/memory_viz.

    Every allocation and free has its stack, and its role as the viewer's category. A device
    without known segments, such as the CPU, gets made-up ones around the addresses of its blocks.
    Names of tensors and the source are left out: a ``.tlens`` file keeps them.
    """
    return pickle.dumps(_Snapshot(recording).data(), protocol=PROTOCOL)


class _Snapshot:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._log = recording.log
        self._numbers = _numbers(self._log)
        # equal stacks and frames are one object, which a pickle writes once
        self._frames, self._frame = cache(self._stack), cache(_frame)
        started = recording.origin.started
        self._started = 0 if started is None else round(started * _US)

    def data(self) -> dict[str, Any]:
        log = self._log
        traces: list[list[dict[str, Any]]] = [[] for _ in range(max(self._numbers, default=-1) + 1)]
        self._fill(traces)
        names = {number: log.devices[device] for device, number in enumerate(self._numbers)}
        return {
            "segments": self._segments(),
            "device_traces": traces,
            "allocator_settings": {},
            "external_annotations": [],
            "tensorlens": {
                "devices": [names.get(each, f"cuda:{each}") for each in range(len(traces))]
            },
        }

    def _stack(self, stack: int) -> list[dict[str, Any]]:
        frames = program_frames(self._log.stacks.of(stack)[::-1])
        return [self._frame(each) for each in reversed(frames)]

    def _fill(self, traces: list[list[dict[str, Any]]]) -> None:
        log, roles = self._log, roles_of(self._recording)
        mapped = {each.device for each in log.segments if each.expandable}
        for row, kind in enumerate(log.kind):
            pair = log.pair[row]
            if kind == START or (kind == FREE and pair < 0):
                continue
            device = log.device[row]
            event = {
                "addr": log.address[row],
                "size": log.size[row],
                "stream": 0,
                "time_us": self._started + log.time[row] // 1000,
                "frames": self._frames(log.stack[row]),
            }
            trace = traces[self._numbers[device]]
            if kind == ALLOC:
                trace.append({"action": "alloc", **event, "category": roles.role(row)})
            elif kind == FREE:
                event.update(category=roles.role(pair), size=log.size[pair])
                trace.append({"action": "free_requested", **event})
                trace.append({"action": "free_completed", **event})
            elif kind == OOM:
                event["device_free"] = event.pop("addr")
                trace.append({"action": "oom", **event})
            else:
                verbs = ("map", "unmap") if log.devices[device] in mapped else ("alloc", "free")
                trace.append({"action": f"segment_{verbs[kind != SEGMENT_ALLOC]}", **event})
        for trace in filter(None, traces):
            # the viewer fails on categories without ``unknown`` among them
            last = {key: trace[-1][key] for key in ("size", "stream", "time_us")}
            trace.append({"action": "snapshot", "addr": 0, **last, "category": "unknown"})

    def _segments(self) -> list[dict[str, Any]]:
        log = self._log
        numbers = dict(zip(log.devices, self._numbers, strict=True))
        listed = (*log.segments, *synthetic_segments(log))
        return [self._segment(each, numbers[each.device]) for each in listed]

    def _segment(self, segment: Segment, number: int) -> dict[str, Any]:
        active = [each for each in segment.blocks if each.state != "inactive"]
        allocated = [each for each in active if each.state == "active_allocated"]
        return {
            "device": number,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(each.size for each in allocated),
            "active_size": sum(each.size for each in active),
            "requested_size": sum(each.requested for each in active),
            "stream": segment.stream,
            "segment_type": segment.kind,
            "segment_pool_id": _pool(segment.pool),
            "is_expandable": segment.expandable,
            "frames": self._frames(segment.stack),
            "blocks": [
                {
                    "address": each.address,
                    "size": each.size,
                    "requested_size": each.requested,
                    "state": each.state,
                    "frames": self._frames(each.stack),
                }
                for each in segment.blocks
            ],
        }


def _frame(frame: Frame) -> dict[str, Any]:
    return {"filename": frame.filename, "line": frame.lineno, "name": frame.function}


def _numbers(log: EventLog) -> list[int]:
    """Return the devices' numbers in a snapshot: 0 for ``cuda:0``, the first free for others."""
    taken: dict[int, int] = {}
    for device, name in enumerate(log.devices):
        match = _NUMBERED.fullmatch(name)
        if match is not None and int(match[1]) not in taken:
            taken[int(match[1])] = device
    free: Iterable[int] = (number for number in range(256) if number not in taken)
    placed: Mapping[int, int] = {device: number for number, device in taken.items()}
    return [
        placed[device] if device in placed else next(iter(free))
        for device in range(len(log.devices))
    ]


def _pool(pool: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", pool or ""))) or (0, 0)
