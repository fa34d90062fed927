"""Lifetimes of a device's blocks, from its trace and its segments at the end.

A trace begins in the middle of a program: it has frees of blocks without their allocations, and
some blocks that exist at its end are not in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensorlens.records.logs.events import (
    ALLOC,
    FREE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    START,
    Segment,
    SegmentBlock,
)
from tensorlens.records.torch_files.sizes import LargePool, Rules
from tensorlens.records.torch_files.trace import FREED, TraceEvent


@dataclass(slots=True)
class Lifetimes:
    """The rows of one device: first the blocks from before the trace, then its events."""

    rows: list[TraceEvent] = field(default_factory=list)
    starts: int = 0
    """Number of rows for blocks from before the trace."""
    resident: int = 0
    """Number of blocks that exist at the end."""
    unsure: int = 0
    """Number of blocks from before the trace whose full size is unknown."""
    late: int = 0
    """Number of blocks that were allocated after the trace ended."""
    missed: int = 0
    """Number of frees and allocations that the trace lacks."""


@dataclass(frozen=True, slots=True)
class _Before:
    """Blocks whose allocation or free is not in the trace."""

    freed: Sequence[TraceEvent]
    """Frees of blocks from before the trace."""
    waiting: Sequence[TraceEvent]
    """Events after which blocks that were freed before the trace may be reused."""
    resident: Sequence[SegmentBlock]
    """Blocks from before the trace that exist at its end."""
    late: Sequence[SegmentBlock]
    """Blocks that were allocated after the trace."""
    listed: Sequence[SegmentBlock]
    """All blocks at the end, by the segments."""


def lifetimes(trace: Sequence[TraceEvent], segments: Sequence[Segment], rules: Rules) -> Lifetimes:
    """Return the lifetimes of a device's blocks.

    The size of a block includes a remainder that was not split off, as in
    ``torch.cuda.memory_allocated()``.

    Args:
        trace: the device's events.
        segments: the allocator's segments at the end.
        rules: the allocator's rules for splitting blocks.
    """
    if not any(step.kind == FREE for step in trace):
        # other writers only have the event after which the block may be reused
        trace = [
            each
            for step in trace
            for each in ((step._replace(kind=FREE), step) if step.kind == FREED else (step,))
        ]
    before = _open_ends(trace, segments)
    pool = LargePool(segments, rules)
    # back to the segments at the beginning of the trace
    for step in reversed(trace):
        if step.kind == SEGMENT_ALLOC and not step.mapped:
            pool.remove(step.address)
        elif step.kind == SEGMENT_FREE and not step.mapped:
            pool.add(step.address, step.size)
    return _Replay(before, pool).run(trace)


def _open_ends(trace: Sequence[TraceEvent], segments: Sequence[Segment]) -> _Before:
    live: set[int] = set()
    not_reusable: set[int] = set()
    touched: set[int] = set()
    freed: list[TraceEvent] = []
    waiting: list[TraceEvent] = []
    for step in trace:
        address = step.address
        if step.kind == ALLOC:
            live.add(address)
            not_reusable.discard(address)
        elif step.kind == FREE:
            if address in live:
                live.discard(address)
            elif address not in touched:
                freed.append(step)
            not_reusable.add(address)
        elif step.kind == FREED:
            if address not in not_reusable and address not in touched:
                waiting.append(step)
            not_reusable.discard(address)
        else:
            continue
        touched.add(address)
    handed_out = sorted(step.address for step in trace if step.kind == ALLOC)
    listed = {block.address: block for block in _allocated(segments)}
    resident: list[SegmentBlock] = []
    late: list[SegmentBlock] = []
    for address, block in listed.items():
        if address in live:
            continue
        place = bisect_left(handed_out, address)
        reused = place < len(handed_out) and handed_out[place] < address + block.size
        (late if address in touched or reused else resident).append(block)
    return _Before(freed, waiting, resident, late, list(listed.values()))


def _allocated(segments: Iterable[Segment]) -> Iterable[SegmentBlock]:
    for segment in segments:
        yield from (block for block in segment.blocks if block.state == "active_allocated")


class _Replay:
    def __init__(self, before: _Before, pool: LargePool) -> None:
        self._before = before
        self._pool = pool
        self._result = Lifetimes()
        self._live: dict[int, int] = {}
        """Address to the row of its allocation."""
        self._sizes: dict[int, int] = {}
        """Row of an allocation to the bytes of its block."""
        self._freed: dict[int, int] = {}
        """Row of a free to that of its allocation."""

    def run(self, trace: Sequence[TraceEvent]) -> Lifetimes:
        result = self._result
        self._start()
        for step in trace:
            if step.kind == ALLOC:
                self._allocate(step)
            elif step.kind == FREE:
                self._free(step)
            elif step.kind == FREED:
                self._pool.free(step.address)
            else:
                self._other(step)
        time = trace[-1].time if trace else -1
        for block in self._before.late:
            result.late += 1
            row = TraceEvent(ALLOC, block.address, block.size, time, block.stack, None)
            self._add(row, block.size)
        result.resident = len(self._live)
        # segments have the exact sizes of blocks that still exist
        self._sizes |= {self._live[each.address]: each.size for each in self._before.listed}
        for number, full_size in self._sizes.items():
            result.rows[number] = result.rows[number]._replace(size=full_size)
        for number, allocated in self._freed.items():
            result.rows[number] = result.rows[number]._replace(size=result.rows[allocated].size)
        return result

    def _start(self) -> None:
        before = self._before
        found: tuple[TraceEvent | SegmentBlock, ...] = (*before.freed, *before.resident)
        for each in found:
            stack = each.stack if isinstance(each, SegmentBlock) else -1
            row = TraceEvent(START, each.address, each.size, -1, stack, None)
            self._add(row, each.size)
        self._result.starts = len(self._result.rows)
        gone = (step.address for step in (*before.freed, *before.waiting))
        self._pool.start((*gone, *(block.address for block in before.resident)))
        for number, step in enumerate(before.freed):
            full_size = self._pool.size_before(step.address, step.size)
            self._result.unsure += full_size is None
            self._sizes[number] = full_size or step.size

    def _allocate(self, step: TraceEvent) -> None:
        if step.address in self._live:
            self._result.missed += 1
            self._pool.free(step.address)
            self._end(step._replace(stack=-1, context=None))
        full_size = self._pool.allocate(step.address, step.size)
        self._add(step, full_size)

    def _add(self, row: TraceEvent, full_size: int) -> None:
        number = self._live[row.address] = len(self._result.rows)
        self._sizes[number] = full_size
        self._result.rows.append(row)

    def _free(self, step: TraceEvent) -> None:
        if step.address in self._live:
            self._end(step)
        else:
            self._result.missed += 1

    def _end(self, step: TraceEvent) -> None:
        result = self._result
        self._freed[len(result.rows)] = self._live.pop(step.address)
        result.rows.append(step._replace(kind=FREE))

    def _other(self, step: TraceEvent) -> None:
        if step.kind == SEGMENT_ALLOC and not step.mapped:
            self._pool.add(step.address, step.size)
        elif step.kind == SEGMENT_FREE and not step.mapped:
            self._pool.remove(step.address)
        self._result.rows.append(step)
