"""The rows of a line table, for text and HTML: which are folded, and the remarks below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorlens.lines.report import FunctionLines, Line, LineMemory, LineReport
from tensorlens.render.figures import device_names, size
from tensorlens.render.source import dedented, printable, short_path

GRAPHS = (
    "From graph execution: these lines ran only while TensorFlow traced them. The figures are of "
    "the nodes that a line made, itself or by what it calls."
)
GRAPH_COLUMNS = {
    "Hits": "calls in which they were handed memory",
    "Allocated": "handed out in one call, the most",
    "Peak": "the most of it at once",
    "Net sum": "left when calls ended, results included, summed",
    "Backward": "what their gradients took in one call",
}
"""Meaning of the columns in tables of graphs."""

_LONGEST_UNFOLDED = 5
_FOLD_MARGIN = 1
_LONG_TABLE = 100
"""Tables with more rows also fold lines that ran and changed nothing."""
_LEVEL = ("allocated", "peak", "reserved")
_NET = ("net", "net_max", "net_first")


@dataclass(frozen=True, slots=True)
class Entry:
    """Figures of a line on one device, or on several with equal figures."""

    devices: tuple[str, ...]
    memory: LineMemory


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A source line; ``entries`` is empty if it never ran or changed no device."""

    line: Line
    source: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """A run of lines that never ran, or that changed nothing in a long table."""

    rows: tuple[ShownLine, ...]

    @property
    def text(self) -> str:
        """Text shown in place of the lines."""
        idle = all(not row.line.hits for row in self.rows)
        return f"{len(self.rows)} lines {'not run' if idle else 'without a change'}"


@dataclass(frozen=True, slots=True)
class FunctionLayout:
    """The table of one function.

    ``body`` is empty for a function never called; a function compiled away has one row, whose
    source is the note.
    """

    function: FunctionLines
    title: str
    place: str
    calls: str
    body: tuple[ShownLine | Fold, ...]
    remarks: tuple[str, ...]
    """Text below the table: devices left out, reasons for ``n/a``, the note."""

    @property
    def is_of_graphs(self) -> bool:
        """Whether the figures are of graphs."""
        return self.function.execution != "lines"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Figures of the rows that are not folded away, in order."""
        return tuple(entry for row in self.rows for entry in row.entries)

    @property
    def rows(self) -> tuple[ShownLine, ...]:
        """The rows that are not folded away."""
        return tuple(row for row in self.body if isinstance(row, ShownLine))

    @property
    def raised(self) -> tuple[ShownLine, ...]:
        """The rows from which an exception left the function."""
        return tuple(row for row in self.rows if row.line.raised is not None)

    @property
    def repeated(self) -> bool:
        """Whether ``net_max`` or ``net_first`` differs from ``net`` anywhere."""
        return any(
            value not in (None, entry.memory.net)
            for entry in self.entries
            for value in (entry.memory.net_max, entry.memory.net_first)
        )

    @property
    def recorded(self) -> bool:
        """Whether a recording has figures of lines in backward."""
        return any(entry.memory.backward is not None for entry in self.entries)


def layouts(report: LineReport) -> tuple[FunctionLayout, ...]:
    """Return the layout of each function of the report."""
    return tuple(_layout(function, report) for function in report.functions)


def devices_of(report: LineReport) -> tuple[str, ...]:
    """Return the names of all devices: those of the header, then others of the lines."""
    names = dict.fromkeys(device.name for device in report.devices)
    for function in report.functions:
        for line in function.lines:
            names.update(dict.fromkeys(line.memory))
    return tuple(names)


def _layout(function: FunctionLines, report: LineReport) -> FunctionLayout:
    note = printable(function.note) if function.note else None
    ran = any(line.hits for line in function.lines)
    body: tuple[ShownLine | Fold, ...] = ()
    remarks: list[str] = []
    if not function.calls and not ran:
        remarks.append(note or "never called")
    elif note and not any(line.memory for line in function.lines):
        time = sum(line.time_ns for line in function.lines)
        raised = next((line.raised for line in function.lines if line.raised), None)
        whole = Line(function.first_line, note, function.calls, time, raised=raised)
        body = (ShownLine(whole, f"({note})", ()),)
    else:
        body, remarks = _body(function, devices_of(report))
        if function.execution == "lines":
            remarks += _unknown_remarks(body, report) + _unrecorded_remarks(function, report)
        else:
            remarks += _graph_remarks(function)
        remarks += [f"note: {note}"] if note else []
    times = "call" if function.calls == 1 else "calls"
    return FunctionLayout(
        function,
        title=printable(function.qualname),
        place=printable(f"{short_path(function.filename)}:{function.first_line}"),
        calls=f"{function.calls} {times}",
        body=body,
        remarks=tuple(remarks),
    )


def _body(
    function: FunctionLines, devices: tuple[str, ...]
) -> tuple[tuple[ShownLine | Fold, ...], list[str]]:
    """Return the rows, and the remarks on devices that are not in them."""
    figures = {
        name: {
            index: line.memory[name]
            for index, line in enumerate(function.lines)
            if name in line.memory
        }
        for name in devices
    }
    used = {name: lines for name, lines in figures.items() if lines}
    # a device without any known figure gets one remark instead of a column of n/a
    active = [
        name
        for name, lines in used.items()
        if any(_may_have_changed(memory) and not _is_unknown(memory) for memory in lines.values())
    ]
    # the level of an only device is shown even if nothing changes
    shown = list(used) if len(devices) == 1 else active
    sources = dedented([line.source for line in function.lines])
    rows = []
    for line, source in zip(function.lines, sources, strict=True):
        here = [name for name in shown if name in line.memory]
        if len(active) > 1:
            here = [name for name in here if _may_have_changed(line.memory[name])]
        rows.append(ShownLine(line, source, _entries(line, here)))
    if not any(sources):
        # without source, lines that never ran are left out
        rows = [row for row in rows if row.line.hits] or rows
    unchanged = {name: lines for name, lines in used.items() if name not in shown}
    return _folded(rows), _level_remarks(unchanged)


def _entries(line: Line, names: list[str]) -> tuple[Entry, ...]:
    groups: dict[tuple[str, LineMemory], list[str]] = {}
    for name in names:
        groups.setdefault((name.partition(":")[0], line.memory[name]), []).append(name)
    return tuple(Entry(tuple(devices), memory) for (_, memory), devices in groups.items())


def _may_have_changed(memory: LineMemory) -> bool:
    """Return whether the line may have changed the device; unknown figures may hide a change."""
    figures = (memory.net, memory.net_max, memory.net_first, memory.peak, memory.allocated)
    moved = None in figures or any(figures[:3]) or memory.peak != memory.allocated
    return moved or bool(memory.backward)


def _is_unknown(memory: LineMemory) -> bool:
    return all(getattr(memory, name) is None for name in (*_LEVEL, *_NET))


def _folded(rows: list[ShownLine]) -> tuple[ShownLine | Fold, ...]:
    body: list[ShownLine | Fold] = []
    start = 0
    is_long = len(rows) > _LONG_TABLE
    while start < len(rows):
        end = start
        while end < len(rows) and _is_idle(rows[end], is_long):
            end += 1
        run = rows[start:end]
        if len(run) > _LONGEST_UNFOLDED:
            body += run[:_FOLD_MARGIN]
            body.append(Fold(tuple(run[_FOLD_MARGIN:-_FOLD_MARGIN])))
            body += run[-_FOLD_MARGIN:]
        else:
            body += run
        body += rows[end : end + 1]
        start = end + 1
    return tuple(body)


def _is_idle(row: ShownLine, is_long: bool) -> bool:
    """Return whether a row can be folded."""
    if row.line.raised is not None:
        return False
    ran = bool(row.line.hits)
    changed = any(_may_have_changed(memory) for memory in row.line.memory.values())
    return not ran or (is_long and bool(row.line.memory) and not changed)


def _level_remarks(unchanged: Mapping[str, Mapping[int, LineMemory]]) -> list[str]:
    """Return one remark for each group of devices that stayed at the same level."""
    groups: dict[str, list[str]] = {}
    for name, lines in unchanged.items():
        if not all(_is_unknown(memory) for memory in lines.values()):
            levels = _size_range(memory.allocated for memory in lines.values())
            reserved = _size_range(memory.reserved for memory in lines.values())
            groups.setdefault(f"{levels} ({reserved} reserved)", []).append(name)
    return [f"{device_names(names)}: unchanged at {text}" for text, names in groups.items()]


def _graph_remarks(function: FunctionLines) -> list[str]:
    if function.execution == "XLA":
        return []
    return [
        f"one call of the whole graph on {device}: {size(memory.allocated)} handed out, "
        f"at most {size(memory.peak)} at once"
        for device, memory in function.whole.items()
    ]


def _size_range(counts: Iterable[int | None]) -> str:
    known = [count for count in counts if count is not None]
    if not known:
        return size(None)
    low, high = size(min(known)), size(max(known))
    return low if low == high else f"{low} to {high}"


def _unrecorded_remarks(function: FunctionLines, report: LineReport) -> list[str]:
    """Return a remark if the column of backward is blank in this table but not in others."""
    others = (each for each in report.functions if each.execution == "lines")
    if function.has_backward or not any(each.has_backward for each in others):
        return []
    return ["Backward is blank: no recording saw these lines"]


def _unknown_remarks(body: tuple[ShownLine | Fold, ...], report: LineReport) -> list[str]:
    """Return why figures are ``n/a``, equal reasons together."""
    missing: dict[str, set[str]] = {}
    for row in body:
        for name, memory in row.line.memory.items() if isinstance(row, ShownLine) else ():
            absent = {field for field in (*_LEVEL, *_NET) if getattr(memory, field) is None}
            missing.setdefault(name, set()).update(absent)
    reasons = {device.name: device.missing for device in report.devices}
    groups: dict[tuple[str, str], list[str]] = {}
    for name, absent in missing.items():
        by_reason: dict[str, list[str]] = {}
        for field in (*_LEVEL, *_NET):
            if field in absent:
                reason = reasons.get(name, {}).get(field, "no reason was given")
                by_reason.setdefault(printable(reason), []).append(field.replace("_", " "))
        for reason, fields in by_reason.items():
            groups.setdefault((", ".join(fields), reason), []).append(name)
    return [
        f"n/a: {fields} of {device_names(names)}: {reason}"
        for (fields, reason), names in groups.items()
    ]
