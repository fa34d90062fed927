"""A recording: every allocation and free of a span of time, and what they tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from tensorlens.recording.analysis import (
    BackwardCost,
    Churn,
    Fragmentation,
    LineGrowth,
    Moment,
    Resident,
    Timeline,
    costs,
    instants,
    levels,
)
from tensorlens.records.documents import Document
from tensorlens.records.logs.events import OWN_MARK, EventLog, Label, Mark, Origin
from tensorlens.records.row_sequence import InternTable
from tensorlens.records.run import Run
from tensorlens.records.tensors import SourceLine

_T = TypeVar("_T")

SCHEMA = "tensorlens.recording"
VERSION = 1
SUMMARY_SCHEMA = "tensorlens.recording_summary"
"""Schema of a recording in ``.json``: its answers and its packed events."""
_EXPRESSION = re.compile(r"[(#]")


class Recording(Document):
    """Every allocation and free of a span of time; prints itself, and in a notebook as HTML.

    Answers are computed on first use. Devices are spelled as in torch; the default device is the
    one with the highest peak.
    """

    SCHEMA: ClassVar[str] = SUMMARY_SCHEMA
    VERSION: ClassVar[int] = VERSION
    KIND: ClassVar[str] = "recording"
    PRESENTER: ClassVar[str] = "tensorlens.recording.present"
    INDENT: ClassVar[int | None] = None

    def __init__(self, log: EventLog, origin: Origin | None = None) -> None:
        self._log = log
        self._origin = Origin() if origin is None else origin
        self._answers: dict[Hashable, Any] = {}

    @property
    def log(self) -> EventLog:
        """The events in columns."""
        return self._log

    @property
    def origin(self) -> Origin:
        """Where the recording is from."""
        return self._origin

    @property
    def run(self) -> Run | None:
        """The run of the program; None if unknown."""
        return self.origin.run

    @property
    def events(self) -> EventLog:
        """The events as a sequence of :class:`~tensorlens.records.logs.events.Event`."""
        return self.log

    @property
    def devices(self) -> Sequence[str]:
        """The devices that have events."""
        return tuple(self.log.devices)

    @property
    def marks(self) -> Sequence[Mark]:
        """The moments that the program gave names."""
        return tuple(each for each in self.log.marks if not each.name.startswith(OWN_MARK))

    def peak(self, device: str | None = None) -> Moment:
        """Return the resident memory at the highest instant.

        Raises:
            UsageError: the recording knows no such device, or none at all.
        """
        return self._answer(instants.peak, device)

    def at(self, instant: int | str, device: str | None = None) -> Moment:
        """Return the resident memory after event number ``instant``, or at the last mark so named.

        -1 is the start, with all memory from before the recording.

        Raises:
            UsageError: there is no such event or mark, or no such device.
        """
        now = self.still()
        return now._answer(instants.moment, instants.row_at(now.log, instant), device)

    def blocks(self, rows: Sequence[int]) -> Sequence[Resident]:
        """Return the blocks of allocations, given by event numbers, in that order.

        Ages are those at the free, or at the end of the recording.

        Raises:
            UsageError: there is no such event, or it hands out no block.
        """
        return instants.blocks(self.still(), rows)

    def timeline(self, device: str | None = None, points: int = 2000) -> Timeline:
        """Return resident bytes over time in about ``points`` points, peaks included.

        Raises:
            UsageError: the recording knows no such device, or none at all.
        """
        return self._answer(levels.timeline, device, points)

    @property
    def backward_by_line(self) -> Mapping[SourceLine | None, int]:
        """Bytes allocated in backward by forward line, largest first; None: no line."""
        return {cost.line: cost.nbytes for cost in self.backward()}

    def backward(self, device: str | None = None) -> Sequence[BackwardCost]:
        """Return the cost in backward of each forward line on a device; None: on all devices.

        Beside the bytes of :attr:`backward_by_line` each has the bytes kept, the highest resident
        bytes, gradients and nodes. Largest first.
        """
        return self._answer(costs.backward, device)

    @property
    def backward_by_module(self) -> Mapping[str | None, int]:
        """Bytes allocated in backward by module, largest first; None: no module."""
        return self.backward_modules()

    def backward_modules(self, device: str | None = None) -> Mapping[str | None, int]:
        """Return the bytes allocated in backward on a device by module; None: on all devices.

        They add up to those of :meth:`backward`.
        """
        return self._answer(costs.backward_modules, device)

    def growth(
        self, start: str | int | None = None, end: str | int | None = None
    ) -> Sequence[LineGrowth]:
        """Return the growth of resident memory from ``start`` to ``end``, largest first.

        Both are a mark's name or an event's number, -1 for the start; by default the start and the
        last event. Of marks with one name ``start`` is the first and ``end`` the last.

        Raises:
            UsageError: there is no such mark or event.
        """
        return self._answer(costs.growth, start, end)

    def churn(self, device: str | None = None) -> Churn:
        """Return the bytes that a device handed out, beside its peak.

        Raises:
            UsageError: the recording knows no such device, or none at all.
        """
        return self._answer(costs.churn, device)

    def fragmentation(self, device: str | None = None) -> Fragmentation | None:
        """Return the use of the allocator's segments; None if they are unknown."""
        return self._answer(levels.fragmentation, device)

    def still(self) -> Recording:
        """Return the recording as of now: itself, or the events of a running one so far.

        An analysis reads the log more than once, and must see the same log.
        """
        return self

    def _answer(self, analyse: Callable[..., _T], *arguments: Hashable) -> _T:
        """Return the result of an analysis of the recording as of now."""
        return self.once((analyse, *arguments), lambda now: analyse(now, *arguments))

    def once(self, question: Hashable, make: Callable[[Recording], _T]) -> _T:
        """Return the cached result of ``make`` for a question about the recording as of now."""
        now = self.still()
        if question not in now._answers:
            now._answers[question] = make(now)
        answer: _T = now._answers[question]
        return answer

    def without_source(self) -> Recording:
        """Return the recording without source text and without expressions as names."""
        now = self.still()
        log, dropped = _without_expressions(now.log), now.origin.dropped_peaks
        peaks = {device: _without_expressions(each) for device, each in dropped.items()}
        if log is now.log and peaks == dropped:
            return self
        return Recording(log, replace(now.origin, dropped_peaks=peaks))

    def _fields(self) -> dict[str, Any]:
        from tensorlens.recording import tlens

        # with the packed events, it is read back equal
        return {**self.presenter().summary(self), "log": tlens.packed(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Recording:
        """Return the recording that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        from tensorlens.recording import tlens

        return tlens.unpacked(cls, data)

    def __reduce__(self) -> tuple[Any, ...]:
        now = self.still()
        return Recording, (now.log, now.origin)

    def __repr__(self) -> str:
        return f"<recording of {len(self.log)} events on {', '.join(self.devices) or 'no device'}>"


def _without_expressions(log: EventLog) -> EventLog:
    """Return the log without source text and expressions as names; itself if it has neither."""
    labels = [_without_expression(each) for each in log.labels]
    if not log.sources and labels == log.labels:
        return log
    found = copy(log)
    found.sources, found.labels = {}, InternTable(labels)
    return found


def _without_expression(label: Label) -> Label:
    """Return the label of an input without the expression that it is named by."""
    # ``step(): x`` is a variable of a function
    if label.role != "input" or not _EXPRESSION.search(label.name.rpartition("(): ")[2]):
        return label
    return replace(label, name="input")
