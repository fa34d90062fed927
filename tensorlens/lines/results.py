"""Line reports, built from the accounts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tensorlens import ranks
from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.compilers import NodeFigures, TracedFigures
from tensorlens.lines.counters import CounterSlots
from tensorlens.lines.functions import ProfiledFunction, signature
from tensorlens.lines.report import (
    DeviceSource,
    Ending,
    FunctionLines,
    Line,
    LineMemory,
    LineReport,
    ResidentLine,
)
from tensorlens.lines.tracing.accounts import Account, BackwardPasses, DeviceFigures, LineStats

if TYPE_CHECKING:
    from tensorlens.recording.record import BackwardLines


_MAX_NESTED_CALLS = 5
"""Depth of callers to which a bound on growth is followed."""
_RECORDINGS = "tensorlens.recording.record"
NEVER_CALLED = "never called"
CLEARED = "not called since the figures were cleared"
COMPILED_WHOLE = "compiled by {}: its lines do not run"
COMPILED_INTO = "compiled into a larger graph by torch.compile: its lines were compiled away"


def build_report(
    functions: Iterable[ProfiledFunction],
    counters: CounterSlots,
    devices: Sequence[str] | None = None,
    process: str | None = None,
    ending: Ending | None = None,
) -> LineReport:
    """Return the report of the present figures.

    ``devices`` limits it to those names, in that order; a device never used is listed with the
    reason instead of figures. ``process`` names a child process; ``ending`` is what ended the
    program early.
    """
    slots = list(enumerate(counters.counters))
    if devices is not None:
        slots = [each for name in devices for each in slots if each[1].device == name]
    sources = [_source(counter) for _, counter in slots]
    seen = {source.name for source in sources}
    sources += [_unused(name) for name in devices or () if name not in seen]
    tables = _TableMaker(slots, devices, _backward(), ending is not None)
    return LineReport(
        functions=tuple(table for function in functions for table in tables.tables_for(function)),
        devices=tuple(sources),
        process=ranks.label(process),
        notes=tuple(counters.notes()),
        ending=ending,
    )


def _backward() -> BackwardLines | None:
    """Return what recordings tell of backward, importing nothing if there was none."""
    if _RECORDINGS not in sys.modules:
        return None
    from tensorlens.recording.record import total_backward

    return total_backward()


def _source(counter: Counter) -> DeviceSource:
    missing = dict(counter.missing)
    if "allocated" in missing:
        for field in ("net", "net_max", "net_first"):
            missing.setdefault(field, missing["allocated"])
    return DeviceSource(counter.device, counter.source, counter.precision, missing)


def _unused(name: str) -> DeviceSource:
    reason = "it was not used while a profiled line ran"
    figures = [field for field in LineMemory.__dataclass_fields__ if field != "backward"]
    return DeviceSource(name, "not used", "", dict.fromkeys(figures, reason))


@dataclass(frozen=True, slots=True)
class _TableMaker:
    """Builder of the tables of functions."""

    slots: Sequence[tuple[int, Counter]]
    devices: Sequence[str] | None
    recorded: BackwardLines | None
    ended_early: bool
    """Whether the program ended early: the last hit may belong to an unfinished step."""

    def tables_for(self, function: ProfiledFunction) -> Iterator[FunctionLines]:
        """Yield the table of lines that ran, and that of graphs that the lines had built."""
        graphs = function.account.graphs
        figures = None if graphs is None else graphs.figures()
        if figures is not None and self.devices is not None and figures.device not in self.devices:
            figures = None
        # the graph's table has the call of a compiled function
        own = {function.first_line} if function.compiler else set()
        if figures is None or set(function.account.lines) - own:
            yield self._function(function)
        if figures is not None:
            yield graph_table(function, figures)

    def _function(self, function: ProfiledFunction) -> FunctionLines:
        account = function.account
        source = dict(enumerate(function.source, function.first_line))
        numbers = {*source, *account.lines}
        if not source:
            numbers.update(line for *_, line in account.code.co_lines() if line)
        if _is_compiled(function) or (function.compiled_into and not account.lines):
            numbers = {function.first_line}
            source = {function.first_line: signature(function)}
        filename, recorded = account.code.co_filename, self.recorded
        is_recorded = recorded is not None and recorded.covers(filename, account.lines)
        backward = recorded.nbytes if recorded is not None and is_recorded else {}
        return FunctionLines(
            **_names(function),
            calls=account.calls,
            lines=tuple(
                self._line(number, source.get(number, ""), account, backward)
                for number in sorted(numbers)
            ),
            note=_note(function, account),
        )

    def _line(
        self,
        number: int,
        source: str,
        account: Account,
        backward: Mapping[str, Mapping[tuple[str, int], int]],
    ) -> Line:
        stats, passes = account.lines.get(number), account.backward_passes.get(number)
        if stats is None:
            return Line(number, source)
        memory = {}
        for at, counter in self.slots:
            if at < len(stats.cells):
                figures = _memory(
                    stats.cells[at], self._growth(account, stats, at), _residents(passes, at)
                )
                if counter.device in backward:
                    nbytes = backward[counter.device].get((account.code.co_filename, number), 0)
                    figures = replace(figures, backward=nbytes)
                memory[counter.device] = figures
        return Line(number, source, stats.hits, stats.time_ns, memory, stats.raised)

    def _growth(
        self, account: Account, stats: LineStats, slot: int, seen: tuple[Account, ...] = ()
    ) -> int:
        """Return how much a line can have leaked: at most as much as the lines that call it.

        If the program ended early, the last hit does not count, unless the line ran once and
        another one in a loop. A line with unknown callers that ran several times in each of
        several calls counts as 0 then: 12 layers of an unfinished step hold the bytes of 11 hits.
        """
        cell, ended_early = stats.cells[slot], self.ended_early
        others = [*account.lines.values()]
        last_counts = not ended_early or (stats.hits == 1 and any(each.hits > 1 for each in others))
        last = max(0, cell.last_net) if last_counts else 0
        growth = max(0, min(cell.net, cell.survived + last))
        bound = self._bound(account, slot, seen)
        if bound is not None:
            return min(growth, bound)
        return 0 if ended_early and stats.hits > account.calls > 1 else growth

    def _bound(self, account: Account, slot: int, seen: tuple[Account, ...]) -> int | None:
        """Return the most that the callers of a function can have left for good.

        None if unknown: a line called it that was not profiled, or that has not ended once; if the
        program ended early, the latter adds nothing.
        """
        if not account.callers or account in seen or len(seen) >= _MAX_NESTED_CALLS:
            return None
        total = 0
        # a copy: a running thread may add callers
        for caller in [*account.callers]:
            stats = None if caller is None else caller[0].lines.get(caller[1])
            if caller is not None and stats is not None and slot < len(stats.cells):
                total += self._growth(caller[0], stats, slot, (*seen, account))
            elif caller is None or not self.ended_early:
                return None
        return total


def _is_compiled(function: ProfiledFunction) -> bool:
    """Return whether a function's call stands for its lines, none of which ran by itself."""
    return bool(function.compiler) and set(function.account.lines) <= {function.first_line}


def _names(function: ProfiledFunction) -> dict[str, Any]:
    fields = ("name", "qualname", "module", "filename", "first_line")
    return {field: getattr(function, field) for field in fields}


def _note(function: ProfiledFunction, account: Account) -> str | None:
    notes = []
    if _is_compiled(function):
        notes.append(f"compiled by {function.compiler}: its lines were compiled away")
    elif function.compiled_into and not account.calls:
        notes.append(COMPILED_INTO)
    elif account.traced and not account.calls:
        times = "once" if account.traced == 1 else f"{account.traced} times"
        notes.append(f"it ran {times} to build graphs, and none was seen to run")
    is_seen = account.calls or account.lines or function.was_read or account.failure
    if not is_seen:
        notes.append(CLEARED if account.cleared else NEVER_CALLED)
    if function.source_note:
        notes.append(function.source_note)
    if account.failure:
        notes.append(account.failure)
    return "; ".join(notes) or None


def _residents(passes: BackwardPasses | None, slot: int) -> tuple[ResidentLine, ...] | None:
    if passes is None or slot >= len(passes.residents):
        return None
    return tuple(ResidentLine(*line, nbytes) for line, nbytes in passes.residents[slot]) or None


def _memory(
    cell: DeviceFigures, growth: int, residents: tuple[ResidentLine, ...] | None
) -> LineMemory:
    unread = cell.unread or cell.net_max is None or cell.allocated < 0
    return LineMemory(
        allocated=_known(cell.allocated),
        peak=_known(cell.peak),
        reserved=_known(cell.reserved),
        net=None if unread else cell.net,
        net_max=None if unread else cell.net_max,
        net_first=None if unread else cell.net_first,
        rise=None if unread or cell.peak < 0 else cell.rise,
        residents=None if unread else residents,
        growth=None if unread else growth,
    )


def _known(figure: int) -> int | None:
    return figure if figure >= 0 else None


def graph_table(function: ProfiledFunction, figures: TracedFigures) -> FunctionLines:
    """Return the table of the graphs that have nodes from a function's lines."""
    source = dict(enumerate(function.source, function.first_line))
    whole = {figures.device: _node_memory(figures.whole, figures.growth)}
    notes = list(figures.notes)
    if figures.compiler is not None:
        first = function.first_line
        lines = [Line(first, signature(function), figures.whole.hits, memory=whole)]
        notes.insert(0, COMPILED_WHOLE.format(figures.compiler))
    else:
        numbers = sorted({*source, *figures.lines, *figures.backward})
        lines = [_node_line(number, source.get(number, ""), figures) for number in numbers]
    if function.source_note:
        notes.append(function.source_note)
    if function.account.failure:
        notes.append(function.account.failure)
    return FunctionLines(
        **_names(function),
        calls=figures.calls,
        lines=tuple(lines),
        note="; ".join(notes) or None,
        execution="graph" if figures.compiler is None else "XLA",
        whole=whole,
    )


def _node_line(number: int, source: str, figures: TracedFigures) -> Line:
    forward, backward = figures.lines.get(number), figures.backward.get(number)
    if forward is None and backward is None:
        return Line(number, source)
    hits = max(each.hits for each in (forward, backward) if each is not None)
    has_gradients = bool(figures.backward)
    gradients = backward or (_NOTHING if has_gradients else None)
    memory = _node_memory(forward or _NOTHING, figures.growth, gradients)
    return Line(number, source, hits, memory={figures.device: memory})


_NOTHING = NodeFigures(0, 0, 0, 0, 0, 0)


def _node_memory(
    forward: NodeFigures, growth: int, backward: NodeFigures | None = None
) -> LineMemory:
    return LineMemory(
        allocated=forward.allocated,
        peak=forward.peak,
        reserved=None,
        net=forward.net,
        net_max=forward.net_max,
        net_first=forward.net_first,
        backward=None if backward is None else backward.allocated,
        growth=max(0, min(forward.net, growth)),
    )
