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

Site = tuple[int, int]
"""Numbers of a stack and a context, which are the site of an event. There are few."""

Key = tuple[int, Hashable]
"""A thread and the key of its run of events; key None continues the run before."""

_T = TypeVar("_T")
_NOTHING = Context()


class SiteTable(dict[Site, _T], Generic[_T]):
    """A cache of a function of a site."""

    def __init__(self, of: Callable[[Site], _T]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, site: Site) -> _T:
        value = self[site] = self._of(site)
        return value


class EventIndex:
    """A log with the facts of its sites; see :func:`event_index`."""

    def __init__(self, log: EventLog) -> None:
        phases = Phases(log.stacks, log.contexts)
        lines = Lines(log.stacks, log.contexts)
        phase = SiteTable(lambda site: phases.of(*site))
        self.log = log
        self.phase = phase
        self.born = SiteTable(lambda site: lines.charged(site[0], -1, "other"))
        self.charged = SiteTable(lambda site: lines.charged(*site, phase[site]))
        self.calls = SiteTable(lambda site: lines.charged_and_callers(*site, phase[site]))
        self.model = SiteTable(lambda site: lines.model(*site, phase[site]))
        self.module = SiteTable(lambda site: lines.module(*site, phase[site]))
        self._spans: SiteTable[Key] = SiteTable(self._span)

    def site(self, row: int) -> Site:
        """Return the site of an event."""
        return self.log.stack[row], self.log.context[row]

    def context(self, site: Site) -> Context:
        """Return the context of a site: the operator, node and thread that ran."""
        return _NOTHING if site[1] < 0 else self.log.contexts[site[1]]

    @cached_property
    def purpose(self) -> SiteTable[Purpose | None]:
        """Purpose of the memory of a site, if a known function allocated it."""
        of_stacks = purposes(self.log.stacks)
        return SiteTable(lambda site: None if site[0] < 0 else of_stacks[site[0]])

    @cached_property
    def runs(self) -> array[int]:
        """Number of the run of each row: successive events of a thread in one operator or node."""
        return self._numbered(lambda site: self._node(site) or self._operator(site))

    @cached_property
    def operator_runs(self) -> array[int]:
        """Number of each row's run as in :attr:`runs`, by operators also where a node runs."""
        return self._numbered(self._operator)

    @cached_property
    def spans(self) -> array[int]:
        """Number of the span of each row: a thread's events in one phase.

        Events of phase ``other`` end no span: it lasts until the next phase begins.
        """
        return _run_numbers(map(self._spans.__getitem__, self.sites()))

    def sites(self) -> Iterable[Site]:
        """Yield the site of each event."""
        return zip(self.log.stack, self.log.context, strict=True)

    def within_run(self, row: int) -> bool:
        """Return whether a block was freed while the operator or node that allocated it still ran.

        The log has no ends of operators. One has ended if its thread's next event has another stack
        or outermost operator; in backward, another node, except for recomputed operators.
        """
        free = self.log.pair[row]
        if free < 0:
            return False
        runs = self.operator_runs if self.computed_again(self.site(row)) else self.runs
        return runs[row] == runs[free]

    def within_phase(self, row: int) -> bool:
        """Return whether a block was freed before the phase that allocated it ended.

        If another thread frees the block, only the phase of the free counts.
        """
        free = self.log.pair[row]
        if free < 0:
            return False
        made, freed = self.site(row), self.site(free)
        if self.phase[made] != self.phase[freed]:
            return False
        elsewhere = self.context(made).thread != self.context(freed).thread
        return elsewhere or self.spans[row] == self.spans[free]

    def computed_again(self, site: Site) -> bool:
        """Return whether an operator made an autograd node in backward: it recomputes forward."""
        return self.context(site).grad and self.phase[site] == "backward"

    def _node(self, site: Site) -> Key | None:
        context = self.context(site)
        if context.node is None or self.phase[site] != "backward":
            return None
        return context.thread, (context.node, context.forward)

    def _operator(self, site: Site) -> Key:
        context = self.context(site)
        return context.thread, (site[0], context.outer or context.op)

    def _numbered(self, of: Callable[[Site], Key]) -> array[int]:
        return _run_numbers(map(SiteTable(of).__getitem__, self.sites()))

    def _span(self, site: Site) -> Key:
        phase = self.phase[site]
        return self.context(site).thread, None if phase == PHASES[-1] else phase


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
