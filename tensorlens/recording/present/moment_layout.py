"""Layout of one instant of a recording, the same for text and HTML.

Equal blocks share a row, the largest first; rows that the view leaves out are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tensorlens.recording.analysis import Moment, Resident
from tensorlens.recording.analysis.event_index import event_index
from tensorlens.recording.analysis.instants import row_at
from tensorlens.recording.analysis.roles import BEFORE
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import ALLOC, START, EventLog, Mark
from tensorlens.records.names import common_name, readable_name, without_indices
from tensorlens.records.tensors import SourceLine
from tensorlens.render.figures import LeftOut, counted, duration, exact_size
from tensorlens.render.shown import SHOW_ALL, View
from tensorlens.render.source import model_place, place, printable
from tensorlens.roles import BLOCK_ROLES

_MAX_GROUPED_BLOCKS = 20_000
"""Blocks that are grouped into rows, unless all are to be shown."""

NO_LINE = "(no line known)"

LINES_SHOWN = 10
"""Lines that a report names; the others are summed."""


_NONE: Mapping[tuple[SourceLine | None, SourceLine], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block, or several of one role and line whose names differ at most in numbers.

    Blocks of several sizes share a row only if each size alone would have the same name.
    """

    name: str
    """Name; of several layers as ``layers[0-11].mlp: saved by Gelu``."""
    first: Resident
    count: int
    nbytes: int
    """Bytes of all of them."""
    lines: int = 1
    """Number of lines that made them: items of one list may be of several."""

    @property
    def place(self) -> str:
        """Line of the model that made them, or the line that they are charged to."""
        if self.lines > 1:
            return counted(self.lines, "line")
        model = self.first.model_line
        if model is not None:
            return model_place(model)
        return line_place(self.first.charged, "before" if self.first.age_ns is None else NO_LINE)


@dataclass(frozen=True, slots=True)
class LineRow:
    """A line of the program and the bytes charged to it."""

    line: SourceLine | None
    nbytes: int
    source: str
    """Text of the line; empty if unknown."""
    is_model: bool = False
    """Whether it is a line of a library's model that the last line above it calls."""
    label: str = ""
    """Text in place of the line: ``cuBLAS workspace (library)``."""

    @property
    def place(self) -> str:
        """Text for the line's place."""
        if self.label:
            return self.label
        if self.line is None or not self.is_model:
            return line_place(self.line)
        return f"  {model_place(self.line)} in {self.line.function}"


@dataclass(frozen=True, slots=True)
class MomentLayout:
    """One device of a recording at the instant that is shown."""

    device: str
    moment: Moment
    is_peak: bool
    when: str
    """``after 1.20 ms, in backward of train.py:12, after "epoch 2"``."""
    roles: tuple[tuple[str, int], ...]
    """Role and bytes, in the order of ``BLOCK_ROLES``."""
    rows: tuple[BlockRow, ...]
    hidden: tuple[LeftOut, ...]
    lines: tuple[LineRow, ...]
    hidden_lines: LeftOut | None

    @property
    def headline(self) -> str:
        """Headline: ``peak 2.00 KiB (2,048 B) in 2 blocks, after 1.20 ms``."""
        blocks = counted(len(self.moment.tensors), "block")
        what = f"{exact_size(self.moment.bytes)} in {blocks}, {self.when}"
        if not self.is_peak:
            return what
        times = self.moment.reached
        return f"peak {what}" + (f"; reached {times:,} times, this is the first" * (times > 1))


def moment_layouts(recording: Recording, view: View) -> tuple[MomentLayout, ...]:
    """Return the devices of a recording at the peak of each, or at the instant ``view`` names."""
    row = None if view.at is None else row_of(recording, view.at)
    found = []
    for device in recording.devices:
        if view.shows_device(device):
            moment = recording.peak(device) if row is None else recording.at(row, device)
            found.append(_layout(recording, moment, row is None, view))
    return tuple(sorted(found, key=lambda each: -each.moment.bytes))


def row_of(recording: Recording, at: str) -> int:
    """Return the row of the instant that ``at`` names: a mark, or an event's number."""
    is_mark = any(mark.name == at for mark in recording.marks)
    is_number = at.isascii() and at.isdigit() and len(at) < 19
    return row_at(recording.log, int(at) if is_number and not is_mark else at)


def when(recording: Recording, moment: Moment) -> str:
    """Return the moment in words."""
    after = f"after {duration(moment.time_ns)}"
    if moment.dropped:
        parts = [after if moment.time_ns else "", "before the first event that was kept"]
        return ", ".join(filter(None, parts))
    if moment.row < 0:
        return start_text(recording)
    kind = recording.log.kind[moment.row]
    timed = kind != START and has_times(recording.log)
    # a log without times has no other name for it
    parts = [after if timed else f"event {moment.row:,}"]
    if kind == START:
        parts = [start_text(recording)]
    parts.append(request_text(recording, moment))
    mark = mark_before(recording.marks, moment.row)
    if mark is not None:
        parts.append(f"after {instant_text(recording.marks, mark)}")
    return ", ".join(filter(None, parts))


def request_text(recording: Recording, moment: Moment) -> str:
    """Return ``in forward at train.py:12`` or ``in backward of train.py:12``, as far as known.

    It is empty if the moment is not that of an allocation.
    """
    if moment.row < 0 or recording.log.kind[moment.row] != ALLOC:
        return ""
    (block,) = recording.blocks((moment.row,))
    where = "" if block.charged is None else place(block.charged)
    if block.phase == "other":
        return where and f"at {where}"
    joint = "of" if block.phase == "backward" else "at"
    return f"in {printable(block.phase)}" + (f" {joint} {where}" if where else "")


def start_text(recording: Recording) -> str:
    """Return in words the moment before the first event of the log."""
    return "at the first event that was kept" if recording.origin.dropped else "at the start"


def mark_before(marks: Sequence[Mark], row: int) -> Mark | None:
    """Return the last mark before an event."""
    return max((mark for mark in marks if mark.row <= row), key=lambda mark: mark.row, default=None)


def instant_text(marks: Sequence[Mark], mark: Mark) -> str:
    """Return a mark's name, with its number if several have the name."""
    alike = [each for each in marks if each.name == mark.name]
    number = next(number for number, each in enumerate(alike, 1) if each is mark)
    which = f" ({number:,} of {len(alike):,})" if len(alike) > 1 else ""
    return f'"{printable(mark.name)}"{which}'


def line_place(line: SourceLine | None, no_line_label: str = NO_LINE) -> str:
    """Return ``train.py:12``, or the label for no line."""
    return no_line_label if line is None else place(line)


def no_line_label(recording: Recording, device: str) -> str:
    """Return the label of the row of a device's blocks without a line."""
    return recording.once(("no line label", device), lambda now: _no_line_label(now, device))


def _no_line_label(recording: Recording, device: str) -> str:
    index, log = event_index(recording), recording.log
    number = log.devices.index(device)
    unknown = (row for row in log.allocations(number) if index.site(row).charged is None)
    before = {log.was_before(row) for row in unknown}
    if before == {True}:
        return BEFORE
    return NO_LINE if True not in before else f"{BEFORE}, or no line known"


def has_times(log: EventLog) -> bool:
    """Return whether events have times; those of an old file may have none."""
    return bool(len(log)) and log.time[len(log) - 1] > 0


def source_of(log: EventLog, line: SourceLine | None) -> str:
    """Return the text of a line without indentation; empty if unknown."""
    if line is None:
        return ""
    lines = log.sources.get(line.filename, ())
    return printable(lines[line.lineno - 1]).strip() if 0 < line.lineno <= len(lines) else ""


def line_rows(
    log: EventLog,
    sizes: Mapping[SourceLine | None, int],
    limit: int | None,
    models: Mapping[tuple[SourceLine | None, SourceLine], int] = _NONE,
    no_line_label: str = NO_LINE,
) -> tuple[tuple[LineRow, ...], LeftOut | None]:
    """Return the lines with the most bytes, and the sum of the others.

    Args:
        log: the log with the source texts.
        sizes: bytes of each line.
        limit: number of lines, and of model lines for each; None for all.
        models: user's line and model's line to bytes; they follow the user's line.
        no_line_label: name of the row that has no line.
    """
    # equal ones in the order of the file
    ordered = sorted(sizes.items(), key=lambda each: (-each[1], str(each[0])))
    most, limit = limit, len(ordered) if limit is None else limit
    rest = ordered[limit:]
    below: dict[SourceLine | None, list[LineRow]] = {}
    for (line, model), nbytes in sorted(models.items(), key=lambda each: -each[1]):
        rows = below.setdefault(line, [])
        if nbytes and (most is None or len(rows) < most):
            rows.append(LineRow(model, nbytes, source_of(log, model), is_model=True))
    return (
        tuple(
            row
            for line, nbytes in ordered[:limit]
            for row in (
                LineRow(line, nbytes, source_of(log, line), label="" if line else no_line_label),
                *below.get(line, ()),
            )
        ),
        LeftOut(len(rest), sum(nbytes for _, nbytes in rest), "") if rest else None,
    )


def lines_limit(view: View) -> int | None:
    """Return the number of lines that a report names; None (all) if it shows all tensors."""
    return None if view.top is None else LINES_SHOWN


def _layout(recording: Recording, moment: Moment, is_peak: bool, view: View) -> MomentLayout:
    rows, hidden = _rows(moment, view)
    lines, hidden_lines = line_rows(
        recording.log,
        moment.by_line,
        lines_limit(view),
        moment.by_model_line,
        no_line_label(recording, moment.device),
    )
    sizes = moment.by_role
    return MomentLayout(
        device=moment.device,
        moment=moment,
        is_peak=is_peak,
        when=when(recording, moment),
        roles=tuple(
            (role, sizes[role]) for role in dict.fromkeys((*BLOCK_ROLES, *sizes)) if sizes.get(role)
        ),
        rows=rows,
        hidden=hidden,
        lines=lines,
        hidden_lines=hidden_lines,
    )


def _rows(moment: Moment, view: View) -> tuple[tuple[BlockRow, ...], tuple[LeftOut, ...]]:
    """Return the largest rows of the view, and sums of the others."""
    blocks = moment.tensors
    most = len(blocks) if view.top is None else _MAX_GROUPED_BLOCKS
    groups: dict[tuple[object, ...], list[Resident]] = {}
    other_roles = [0, 0]
    small = False
    for block in blocks[:most]:
        if block.nbytes < view.min_size:
            small = True
            break
        if view.roles and block.role not in view.roles:
            other_roles[0] += 1
            other_roles[1] += block.nbytes
            continue
        key = block.nbytes, without_indices(block.name), block.role, _line_of(block)
        groups.setdefault(key, []).append(block)
    rows = sorted(_together(groups.values()), key=lambda row: -row.nbytes)
    shown = tuple(rows[: view.top])
    hidden = []
    if other_roles[0]:
        hidden.append(LeftOut(other_roles[0], other_roles[1], "of other roles"))
    count = len(blocks) - other_roles[0] - sum(row.count for row in shown)
    if count:
        nbytes = moment.bytes - other_roles[1] - sum(row.nbytes for row in shown)
        is_cut = len(shown) < len(rows) or not small
        why = SHOW_ALL if is_cut else "smaller than min_size"
        hidden.append(LeftOut(count, nbytes, why))
    return shown, tuple(hidden)


def _together(groups: Iterable[list[Resident]]) -> list[BlockRow]:
    """Make rows of groups of equal blocks; groups that would look alike are one row."""
    rows: dict[tuple[object, ...], tuple[str, list[Resident]]] = {}
    for alike in groups:
        first, name = alike[0], readable_name(common_name([block.name for block in alike]))
        # without a line sizes tell blocks apart
        where = first.nbytes if first.charged is None else _line_of(first)
        rows.setdefault((name, first.role, where), (name, []))[1].extend(alike)
    return [
        BlockRow(
            name,
            blocks[0],
            len(blocks),
            sum(block.nbytes for block in blocks),
            len({(block.charged, block.model_line) for block in blocks}),
        )
        for name, blocks in rows.values()
    ]


def _line_of(block: Resident) -> object:
    """Return the line that blocks are grouped by; None for items of a list."""
    is_item = block.known and block.name.endswith("]")
    return None if is_item else (block.charged, block.model_line)
