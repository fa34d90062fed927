"""An index of a log: facts that several questions need, each computed once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable
from functools import cache, cached_property
from typing import TYPE_CHECKING

from tensorlens.recording.analysis.sites import Site, Sites
from tensorlens.records.logs.events import PHASES, EventLog

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

Key = tuple[int, Hashable]
"""A thread and the key of its run of events; key None continues the run before."""


class EventIndex:
    """A log with its sites and runs; see :func:`event_index`."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.table = Sites(log)

    def site(self, row: int) -> Site:
        """Return the site of an event."""
        return self.table[self.log.stack[row], self.log.context[row]]

    def sites(self) -> Iterable[Site]:
        """Yield the site of each event."""
        return map(self.table.__getitem__, zip(self.log.stack, self.log.context, strict=True))

    @cached_property
    def runs(self) -> array[int]:
        """Number of the run of each row: successive events of a thread in one operator or node."""
        return self._numbered(lambda site: _node(site) or _operator(site))

    @cached_property
    def operator_runs(self) -> array[int]:
        """Number of each row's run as in :attr:`runs`, by operators also where a node runs."""
        return self._numbered(_operator)

    @cached_property
    def spans(self) -> array[int]:
        """Number of the span of each row: a thread's events in one phase.

        Events of phase ``other`` end no span: it lasts until the next phase begins.
        """
        return self._numbered(_span)

    def within_run(self, row: int) -> bool:
        """Return whether a block was freed while the operator or node that allocated it still ran.

        The log has no ends of operators. One has ended if its thread's next event has another stack
        or outermost operator; in backward, another node, except for recomputed operators.
        """
        free = self.log.pair[row]
        if free < 0:
            return False
        runs = self.operator_runs if self.site(row).computed_again else self.runs
        return runs[row] == runs[free]

    def within_phase(self, row: int) -> bool:
        """Return whether a block was freed before the phase that allocated it ended.

        If another thread frees the block, only the phase of the free counts.
        """
        free = self.log.pair[row]
        if free < 0:
            return False
        made, freed = self.site(row), self.site(free)
        if made.phase != freed.phase:
            return False
        elsewhere = made.context.thread != freed.context.thread
        return elsewhere or self.spans[row] == self.spans[free]

    def _numbered(self, of: Callable[[Site], Key]) -> array[int]:
        return _run_numbers(map(cache(of), self.sites()))


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


def _node(site: Site) -> Key | None:
    context = site.context
    if context.node is None or site.phase != "backward":
        return None
    return context.thread, (context.node, context.forward)


def _operator(site: Site) -> Key:
    context = site.context
    return context.thread, (site.stack, context.outer or context.op)


def _span(site: Site) -> Key:
    return site.context.thread, None if site.phase == PHASES[-1] else site.phase
