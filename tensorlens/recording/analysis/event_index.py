"""An index of a log: facts that several questions need, each computed once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorlens.recording.analysis.places import Lines, Phases, Purpose, purposes
from tensorlens.records.logs.events import PHASES, Context, EventLog

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

Place = tuple[int, int]
"""Numbers of a stack and a context, which are the site of an event. There are few."""

Key = tuple[int, Hashable]
"""A thread and the key of its run of events; key None continues the run before."""

_T = TypeVar("_T")
_NOTHING = Context()


class PlaceTable(dict[Place, _T], Generic[_T]):
    """A cache of a function of a place."""

    def __init__(self, of: Callable[[Place], _T]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, place: Place) -> _T:
        value = self[place] = self._of(place)
        return value


class EventIndex:
    """A log with the facts of its places; see :func:`event_index`."""

    def __init__(self, log: EventLog) -> None:
        phases = Phases(log.stacks, log.contexts)
        lines = Lines(log.stacks, log.contexts)
        phase = PlaceTable(lambda place: phases.of(*place))
        self.log = log
        self.phase = phase
        self.born = PlaceTable(lambda place: lines.charged(place[0], -1, "other"))
        self.charged = PlaceTable(lambda place: lines.charged(*place, phase[place]))
        self.calls = PlaceTable(lambda place: lines.calls(*place, phase[place]))
        self.model = PlaceTable(lambda place: lines.model(*place, phase[place]))
        self.module = PlaceTable(lambda place: lines.module(*place, phase[place]))
        self._spans: PlaceTable[Key] = PlaceTable(self._span)

    def place(self, row: int) -> Place:
        """Return the place of an event."""
        return self.log.stack[row], self.log.context[row]

    def context(self, place: Place) -> Context:
        """Return the context of a place: the operator, node and thread that ran."""
        return _NOTHING if place[1] < 0 else self.log.contexts[place[1]]

    @cached_property
    def purpose(self) -> PlaceTable[Purpose | None]:
        """Purpose of the memory of a place, if a known function allocated it."""
        of_stacks = purposes(self.log.stacks)
        return PlaceTable(lambda place: None if place[0] < 0 else of_stacks[place[0]])

    @cached_property
    def runs(self) -> array[int]:
        """Number of the run of each row: a thread's events in a row in one operator or node."""
        return self._numbered(lambda place: self._node(place) or self._operator(place))

    @cached_property
    def operator_runs(self) -> array[int]:
        """Number of each row's run as in :attr:`runs`, by operators also where a node runs."""
        return self._numbered(self._operator)

    @cached_property
    def spans(self) -> array[int]:
        """Number of the span of each row: a thread's events in one phase.

        Events of phase ``other`` end no span: it lasts until the next phase begins.
        """
        return _run_numbers(map(self._spans.__getitem__, self.places()))

    def places(self) -> Iterable[Place]:
        """Yield the place of each event."""
        return zip(self.log.stack, self.log.context, strict=True)

    def within_run(self, row: int) -> bool:
        """Return whether a block was freed while the operator or node that allocated it still ran.

        The log has no ends of operators. One has ended if its thread's next event has another stack
        or outermost operator; in backward, another node, except for recomputed operators.
        """
        free = self.log.pair[row]
        if free < 0:
            return False
        runs = self.operator_runs if self.computed_again(self.place(row)) else self.runs
        return runs[row] == runs[free]

    def within_phase(self, row: int) -> bool:
        """Return whether a block was freed before the phase that allocated it ended.

        If another thread frees the block, only the phase of the free counts.
        """
        free = self.log.pair[row]
        if free < 0:
            return False
        made, freed = self.place(row), self.place(free)
        if self.phase[made] != self.phase[freed]:
            return False
        elsewhere = self.context(made).thread != self.context(freed).thread
        return elsewhere or self.spans[row] == self.spans[free]

    def computed_again(self, place: Place) -> bool:
        """Return whether an operator made an autograd node in backward, as before in forward."""
        return self.context(place).grad and self.phase[place] == "backward"

    def _node(self, place: Place) -> Key | None:
        context = self.context(place)
        if context.node is None or self.phase[place] != "backward":
            return None
        return context.thread, (context.node, context.forward)

    def _operator(self, place: Place) -> Key:
        context = self.context(place)
        return context.thread, (place[0], context.outer or context.op)

    def _numbered(self, of: Callable[[Place], Key]) -> array[int]:
        return _run_numbers(map(PlaceTable(of).__getitem__, self.places()))

    def _span(self, place: Place) -> Key:
        phase = self.phase[place]
        return self.context(place).thread, None if phase == PHASES[-1] else phase


def event_index(recording: Recording) -> EventIndex:
    """Return the index of a recording's log, made once."""
    return recording.once("index", lambda now: EventIndex(now.log))


def _run_numbers(keys: Iterable[Key]) -> array[int]:
    """Number the runs of equal keys of each thread from 1; 0 before a thread's first run."""
    last: dict[int, Hashable] = {}
    current: dict[int, int] = {}
    numbers = array("i")
    begun = 0
    for thread, key in keys:
        if key is not None and last.get(thread) != key:
            last[thread] = key
            begun += 1
            current[thread] = begun
        numbers.append(current.get(thread, 0))
    return numbers
