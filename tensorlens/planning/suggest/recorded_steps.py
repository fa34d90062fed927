"""A recording of a program's steps, read by finders and replayed with changes."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final, TypeVar

from tensorlens.planning.step_facts import StepFacts, plain_name
from tensorlens.planning.suggest.result import Kind, Suggestion
from tensorlens.planning.trace import Framework
from tensorlens.recording.analysis.event_index import event_index
from tensorlens.recording.analysis.levels import device_or_highest, device_peak, level_changes
from tensorlens.recording.analysis.roles import roles_of
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import ALLOC, FREE, GRAPH_CALL, EventLog
from tensorlens.records.row_sequence import InternTable

TORCH: Final = "torch"
TENSORFLOW: Final = "tensorflow"
_STEP = re.compile(r"step \d+")


K = TypeVar("K")


def ranges_by_key(rows: Iterable[int], key: Callable[[int], K]) -> Iterator[tuple[K, range]]:
    """Group consecutive rows by key; yield each key with the range from first to last row."""
    for value, group in groupby(rows, key):
        found = list(group)
        yield value, range(found[0], found[-1] + 1)


class RecordedSteps:
    """A recording of steps, on one device.

    Args:
        recording: one or more steps, with or without set-up.
        facts: further facts of the program; None if there is only the recording.
        device: device whose memory counts; None: the one with the highest peak.
        framework: framework of the steps; None: that of the recording, torch if it has both.

    Raises:
        UsageError: the recording has no events, or knows no such device.
    """

    def __init__(
        self,
        recording: Recording,
        facts: StepFacts | None = None,
        device: str | None = None,
        framework: Framework | None = None,
    ) -> None:
        self.recording = recording = _plainly_named(recording)
        self.has_facts = facts is not None
        facts = facts or StepFacts()
        blocks = tuple(replace(each, path=plain_name(each.path)) for each in facts.blocks)
        self.facts = replace(facts, blocks=blocks)
        self.framework = framework or _framework(recording)
        self.device = device_or_highest(recording, device)
        self.log = recording.log
        self.number = self.log.devices.index(self.device)
        self.index = event_index(recording)
        self.roles = roles_of(recording)
        self.peak, self.peak_row = device_peak(recording, self.device)

    @cached_property
    def host_peak(self) -> int:
        """Most bytes allocated on the host; 0 if the host is not recorded."""
        return device_peak(self.recording, "cpu")[0] if "cpu" in self.log.devices else 0

    def suggestion(
        self,
        kind: Kind,
        change: str,
        *,
        what: str,
        code: str,
        peak: int,
        before: int | None = None,
        **others: Any,
    ) -> Suggestion:
        """Return a change that lowers the peak, or ``before`` if given, to ``peak``."""
        now = self.peak if before is None else before
        return Suggestion(kind, change, what, code, peak, now - peak, before=before, **others)

    def replay(self) -> Replay:
        """Return the events, to be changed."""
        return Replay(self.log, self.number)

    def phase(self, row: int) -> str:
        """Return the program's phase at a row."""
        return self.index.site(row).phase

    def allocations(self, span: range | None = None) -> Iterator[int]:
        """Yield the rows of the device's blocks, including those from before the recording."""
        log, number = self.log, self.number
        for row in range(len(log)) if span is None else span:
            if log.kind[row] < FREE and log.device[row] == number:
                yield row

    def end(self, row: int) -> int:
        """Return the row where a block was freed; the log's end if it was not."""
        pair = self.log.pair[row]
        return len(self.log) if pair < 0 else pair

    def role(self, row: int) -> str:
        """Return the role of a block."""
        return self.roles.role(row)

    def block_at(self, address: int, row: int) -> int | None:
        """Return the block that contained an address right before an event."""
        log = self.log
        for each in self.allocations():
            inside = log.address[each] <= address < log.address[each] + log.size[each]
            if inside and each < row <= self.end(each):
                return each
        return None

    def similar_blocks(self, row: int) -> list[int]:
        """Return the blocks of the same size that the same line and operator made."""
        return self._blocks_by_key.get(self._similarity_key(row), [row])

    @cached_property
    def _blocks_by_key(self) -> dict[tuple[int, int, int], list[int]]:
        found: dict[tuple[int, int, int], list[int]] = {}
        for row in self.allocations():
            found.setdefault(self._similarity_key(row), []).append(row)
        return found

    def _similarity_key(self, row: int) -> tuple[int, int, int]:
        log = self.log
        return log.stack[row], log.context[row], log.size[row]

    def marks(self, name: str) -> list[int]:
        """Return the first rows after each mark of a name."""
        return [mark.row for mark in self.log.marks if mark.name == name]

    @cached_property
    def steps(self) -> Sequence[range]:
        """The steps, by the marks ``step 1``, ``step 2``, ..., else by :attr:`optimizer_steps`.

        A graph, whose phases overlap, is one step. Events after the last step are a step of their
        own if forward runs again.
        """
        bounds = [mark.row for mark in self.log.marks if _STEP.fullmatch(mark.name)]
        if bounds:
            return [range(*each) for each in pairwise([*bounds, len(self.log)])]
        if self.marks(GRAPH_CALL):
            bounds = [0, len(self.log)]
        else:
            bounds = [0, *(span.stop for span in self.optimizer_steps)]
            if len(bounds) > 1 and all(row < bounds[-1] for row in self.forward_rows):
                bounds[-1] = len(self.log)
            elif bounds[-1] != len(self.log):
                bounds.append(len(self.log))
        return [range(*each) for each in pairwise(bounds)]

    @cached_property
    def optimizer_steps(self) -> Sequence[range]:
        """Steps of the optimizers, in order.

        Optimizers that step without forward or backward between them count as one.
        """
        rows = (row for row in range(len(self.log)) if self.phase(row) != "other")
        return [span for phase, span in ranges_by_key(rows, self.phase) if phase == "optimizer"]

    @cached_property
    def forward_rows(self) -> Sequence[int]:
        """Rows of allocations in the forward phase."""
        log = self.log
        return [
            row
            for row in range(len(log))
            if log.kind[row] == ALLOC and self.phase(row) == "forward"
        ]

    def moment(self, row: int) -> str:
        """Return the moment of an event: ``in backward, step 2``."""
        phase = "at the beginning" if row < 0 else self.phase(row)
        number = next((n for n, span in enumerate(self.steps, 1) if row in span), None)
        words = {"optimizer": "in the optimizer's step", "other": "between the phases"}
        text = words.get(phase, phase if row < 0 else f"in {phase}")
        return text if number is None else f"{text}, step {number}"


def _plainly_named(recording: Recording) -> Recording:
    """Return a recording whose names can be pasted into code."""
    log = copy(recording.log)
    log.stacks = copy(log.stacks)
    log.stacks.modules = InternTable(map(plain_name, log.stacks.modules))
    log.labels = InternTable(replace(each, name=plain_name(each.name)) for each in log.labels)
    return Recording(log, recording.origin)


def _framework(recording: Recording) -> Framework:
    source = " ".join(recording.origin.source.values())
    return TENSORFLOW if "TensorFlow" in source and TORCH not in source else TORCH


Finder = Callable[[RecordedSteps], Iterator[Suggestion]]
"""Finds the changes of one kind."""


class Replay:
    """The memory level of one device over the log, with changes applied."""

    def __init__(self, log: EventLog, device: int) -> None:
        self._log = log
        self._changes = array("q", [*level_changes(log, device), 0])
        self._moved: dict[int, int] = {}
        """Row to the bytes added right before it by moved frees and added blocks."""
        self._inserted: dict[int, list[int]] = {}
        """Row to further allocations and frees right before it."""

    def remove(self, row: int) -> None:
        """Remove an allocation and its free."""
        self._changes[row] -= self._log.size[row]
        self._undo_free(row)

    def free(self, row: int, before: int) -> None:
        """Free a block right before an event, which may be later than its free."""
        self._undo_free(row)
        self._move(before, -self._log.size[row])

    def free_first_copy(self, row: int, before: int) -> None:
        """Free a block right before an event; its former free is now of a second copy.

        :meth:`insert` must allocate that copy.
        """
        self._move(before, -self._log.size[row])

    def add(self, nbytes: int, after: int, before: int) -> None:
        """Add a block allocated right after one event and freed right before another."""
        self._move(after + 1, nbytes)
        self._move(before, -nbytes)

    def insert(self, before: int, changes: Iterable[int]) -> None:
        """Add allocations, and frees as negative sizes, in order before an event."""
        self._inserted.setdefault(before, []).extend(changes)

    def peak(self) -> int:
        """Return the highest level."""
        highest = level = 0
        for row, change in enumerate(self._changes):
            if row in self._moved:
                level += self._moved[row]
            for each in (*self._inserted.get(row, ()), change):
                level += each
                highest = max(highest, level)
        return highest

    def _undo_free(self, row: int) -> None:
        if self._log.pair[row] >= 0:
            self._changes[self._log.pair[row]] += self._log.size[row]

    def _move(self, row: int, nbytes: int) -> None:
        row = min(row, len(self._log))
        self._moved[row] = self._moved.get(row, 0) + nbytes
