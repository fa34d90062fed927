"""From a device's trace and its segments at the end: which blocks were there, and when.

A trace begins in the middle of a program, so blocks are freed in it that it never saw handed out,
and blocks are there at its end that it does not know.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorlens.records.events import (
    ALLOC,
    FREE,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    START,
    Context,
    Segment,
    SegmentBlock,
)
from tensorlens.records.torch_snapshots.extents import Extents
from tensorlens.records.torch_snapshots.sizes import Rules
from tensorlens.records.torch_snapshots.trace import FREED, Step


class LogRow(NamedTuple):
    """One row for an event log; ``time`` in microseconds, as in the trace."""

    kind: int
    address: int
    size: int
    time: int
    stack: int
    context: Context | None


@dataclass(slots=True)
class Lifetimes:
    """The rows of one device: those that were there at the start, then those of its trace."""

    starts: list[LogRow] = field(default_factory=list)
    rows: list[LogRow] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    """Number of an allocation, ``starts`` counted before ``rows``, to the bytes it was given; empty
    where the rows' sizes are those bytes."""
    resident: int = 0
    """Blocks that are there at the end."""
    unsure: int = 0
    """Blocks of which it stays open what they were given."""
    late: int = 0
    """Blocks that were handed out after the trace ended."""
    missed: int = 0
    """Frees and allocations that the trace lacks."""
    contradictions: int = 0
    """Events that do not go with the segments."""


@dataclass(frozen=True, slots=True)
class _Before:
    """Blocks whose first or last event the trace does not have."""

    freed: Sequence[Step]
    """Frees of blocks that were there before it."""
    waiting: Sequence[Step]
    """Blocks given back before it that another stream still used."""
    resident: Sequence[SegmentBlock]
    """Blocks that were there before it and still are."""
    late: Sequence[SegmentBlock]
    """Blocks that were handed out after it."""
    listed: Sequence[SegmentBlock]
    """Blocks that are there at its end, by the segments."""


def lifetimes(
    trace: Sequence[Step],
    segments: Sequence[Segment],
    made_up: Sequence[Segment],
    rules: Rules,
    *,
    exact: bool = False,
) -> Lifetimes:
    """Return when each block of a device was there.

    Args:
        trace: what happened.
        segments: what the allocator held at the end.
        made_up: more blocks that were there at the end, in segments that no allocator knows.
        rules: how the allocator of the segments splits its blocks.
        exact: the trace has sizes as they are to be counted. Else a block counts with the bytes
            that it was given, the remainder that was not split off included, as
            ``torch.cuda.memory_allocated()`` does.
    """
    before = _open_ends(trace, segments, made_up)
    extents = None
    if segments:
        extents = Extents(segments, rules)
        _rewind(extents, trace)
    return _Replay(before, extents, exact).run(trace)


def _open_ends(
    trace: Sequence[Step], segments: Sequence[Segment], made_up: Sequence[Segment]
) -> _Before:
    live: set[int] = set()
    waiting: set[int] = set()
    touched: set[int] = set()
    freed: list[Step] = []
    pending: list[Step] = []
    two_steps = any(step.kind == FREE for step in trace)
    for step in trace:
        address = step.address
        if step.kind == ALLOC:
            live.add(address)
            waiting.discard(address)
        elif step.kind == FREE or (step.kind == FREED and not two_steps):
            if address in live:
                live.discard(address)
            elif address not in touched:
                freed.append(step)
            waiting.add(address)
        elif step.kind == FREED:
            if address not in waiting and address not in touched:
                pending.append(step)
            waiting.discard(address)
        else:
            continue
        touched.add(address)
    handed_out = sorted(step.address for step in trace if step.kind == ALLOC)
    listed = {block.address: block for block in _allocated(segments)}
    others = {block.address: block for block in _allocated(made_up)}
    resident: list[SegmentBlock] = []
    late: list[SegmentBlock] = []
    for address, block in {**others, **listed}.items():
        if address in live:
            continue
        place = bisect_left(handed_out, address)
        reused = place < len(handed_out) and handed_out[place] < address + block.size
        later = address in touched or (reused and address in listed)
        (late if later else resident).append(block)
    return _Before(freed, pending, resident, late, list({**others, **listed}.values()))


def _allocated(segments: Iterable[Segment]) -> Iterable[SegmentBlock]:
    for segment in segments:
        yield from (block for block in segment.blocks if block.state == "active_allocated")


def _rewind(extents: Extents, trace: Sequence[Step]) -> None:
    for step in reversed(trace):
        if step.kind == SEGMENT_ALLOC:
            extents.remove(step.address, step.size, mapped=step.mapped)
        elif step.kind == SEGMENT_FREE:
            extents.add(step.address, step.size, mapped=step.mapped)


class _Replay:
    def __init__(self, before: _Before, extents: Extents | None, exact: bool) -> None:
        self._before = before
        self._exact = exact
        self._extents = extents
        self._made = Lifetimes()
        self._live: dict[int, int] = {}
        """Address to the number of its allocation."""
        self._freed: list[tuple[int, int]] = []
        """Place of a free in the rows, and the number of its allocation."""

    def run(self, trace: Sequence[Step]) -> Lifetimes:
        made = self._made
        self._start()
        two_steps = any(step.kind == FREE for step in trace)
        for step in trace:
            if step.kind == ALLOC:
                self._allocate(step)
            elif step.kind in (FREE, FREED):
                if step.kind == FREE or not two_steps:
                    self._free(step)
                if step.kind == FREED and self._extents is not None:
                    made.unsure += self._extents.free(step.address)
            else:
                self._other(step)
        time = trace[-1].time if trace else -1
        for block in self._before.late:
            made.late += 1
            row = LogRow(ALLOC, block.address, block.size, time, block.stack, None)
            self._hand_out(row, block.size)
        made.resident = len(self._live)
        self._settle_sizes()
        if not self._exact:
            self._count_given()
        if self._extents is not None:
            made.contradictions += self._extents.contradictions
        return made

    def _start(self) -> None:
        made, extents = self._made, self._extents
        for step in self._before.freed:
            self._live[step.address] = len(made.starts)
            made.starts.append(LogRow(START, step.address, step.size, -1, -1, None))
            if extents is not None:
                extents.was_there(step.address, step.address + step.size, known=False)
        for block in self._before.resident:
            self._live[block.address] = len(made.starts)
            made.held[len(made.starts)] = block.size
            made.starts.append(LogRow(START, block.address, block.size, -1, block.stack, None))
            if extents is not None:
                extents.was_there(block.address, block.address + block.size, known=True)
        if extents is not None:
            for step in self._before.waiting:
                extents.was_there(step.address, step.address + step.size, known=False)
            for address, given in extents.settle().items():
                if address in self._live:
                    made.held[self._live[address]] = given

    def _settle_sizes(self) -> None:
        """Give the blocks that are still there what the segments tell of them."""
        made = self._made
        for block in self._before.listed:
            number = self._live[block.address]
            made.contradictions += made.held.get(number, block.size) != block.size
            made.held[number] = block.size

    def _count_given(self) -> None:
        """Let each row have the bytes that the block was given, where those are known."""
        made = self._made
        for number, given in made.held.items():
            rows, place = self._row(number)
            rows[place] = rows[place]._replace(size=given)
        for place, number in self._freed:
            rows, allocated = self._row(number)
            made.rows[place] = made.rows[place]._replace(size=rows[allocated].size)
        made.held.clear()

    def _row(self, number: int) -> tuple[list[LogRow], int]:
        """Return where the row of an allocation is."""
        made = self._made
        starts = len(made.starts)
        return (made.starts, number) if number < starts else (made.rows, number - starts)

    def _allocate(self, step: Step) -> None:
        made = self._made
        if step.address in self._live:
            made.missed += 1
            self._end(step._replace(stack=-1, context=None))
        given = None
        if self._extents is not None:
            given, told = self._extents.place(step.address, step.size)
            if told is not None and told[0] in self._live:
                made.held[self._live[told[0]]] = told[1]
        self._hand_out(LogRow(ALLOC, *step[1:6]), given)

    def _hand_out(self, row: LogRow, given: int | None) -> None:
        made = self._made
        number = len(made.starts) + len(made.rows)
        self._live[row.address] = number
        if given is not None:
            made.held[number] = given
        made.rows.append(row)

    def _free(self, step: Step) -> None:
        if step.address in self._live:
            self._end(step)
        else:
            self._made.missed += 1

    def _end(self, step: Step) -> None:
        number = self._live.pop(step.address)
        made = self._made
        rows, place = self._row(number)
        size = rows[place].size
        self._freed.append((len(made.rows), number))
        made.rows.append(LogRow(FREE, step.address, size, step.time, step.stack, step.context))

    def _other(self, step: Step) -> None:
        if step.kind != OOM and self._extents is not None:
            change = self._extents.add if step.kind == SEGMENT_ALLOC else self._extents.remove
            change(step.address, step.size, mapped=step.mapped)
        self._made.rows.append(LogRow(*step[:6]))
