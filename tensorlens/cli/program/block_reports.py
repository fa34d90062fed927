"""One report from many: what a program's blocks and functions did each time they were reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorlens.lines.report import (
    DeviceSource,
    Ending,
    FunctionLines,
    Line,
    LineMemory,
    LineReport,
)

_Key = tuple[str, int, str]


class MergedReport:
    """Adds reports up, in memory that depends on the code and not on how often it ran."""

    def __init__(self) -> None:
        self._functions: dict[_Key, FunctionLines] = {}
        self._devices: dict[str, DeviceSource] = {}
        self._notes: dict[str, None] = {}

    def add(self, report: LineReport) -> None:
        """Add the figures of a report; they must not be those of one added before."""
        for function in report.functions:
            key = (function.filename, function.first_line, function.qualname)
            known = self._functions.get(key)
            self._functions[key] = function if known is None else _sum(known, function)
        self._devices.update({device.name: device for device in report.devices})
        self._notes.update(dict.fromkeys(report.notes))

    def report(self, process: str | None = None, ending: Ending | None = None) -> LineReport:
        """Return all that was added."""
        return LineReport(
            functions=tuple(self._functions.values()),
            devices=tuple(self._devices.values()),
            process=process,
            notes=tuple(self._notes),
            ending=ending,
        )


def _sum(earlier: FunctionLines, later: FunctionLines) -> FunctionLines:
    lines = {line.lineno: line for line in earlier.lines}
    for line in later.lines:
        lines[line.lineno] = (
            _sum_of_line(lines[line.lineno], line) if line.lineno in lines else line
        )
    return replace(
        later,
        calls=earlier.calls + later.calls,
        lines=tuple(lines[number] for number in sorted(lines)),
        note=(later.note if later.calls else None) or (earlier.note if earlier.calls else None),
    )


def _sum_of_line(earlier: Line, later: Line) -> Line:
    memory = dict(earlier.memory)
    for device, figures in later.memory.items():
        memory[device] = _sum_of_memory(memory[device], figures) if device in memory else figures
    return replace(
        later,
        hits=earlier.hits + later.hits,
        time_ns=earlier.time_ns + later.time_ns,
        memory=memory,
        raised=later.raised or earlier.raised,
    )


def _sum_of_memory(earlier: LineMemory, later: LineMemory) -> LineMemory:
    return LineMemory(
        allocated=_known(max, earlier.allocated, later.allocated),
        peak=_known(max, earlier.peak, later.peak),
        reserved=_known(max, earlier.reserved, later.reserved),
        net=_known(int.__add__, earlier.net, later.net),
        net_max=_known(max, earlier.net_max, later.net_max),
        net_first=earlier.net_first,
        # of all recordings so far, not of what was done since the report before
        backward=earlier.backward if later.backward is None else later.backward,
        rise=max(earlier, later, key=lambda each: each.peak or 0).rise,
        growth=_known(int.__add__, earlier.growth, later.growth),
    )


def _known(join: Callable[[int, int], int], first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else join(first, second)
