"""A process as it is shown: levels over time, roles, the hottest lines and the largest tensors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

from tensorlens.frameworks import base
from tensorlens.live.client import ServedProcess
from tensorlens.live.protocol import Ask, JobLevels, LineTotals, Look, TensorTotals
from tensorlens.records.documents import restored
from tensorlens.records.names import readable_name
from tensorlens.render.blocks import (
    NO_BREAK,
    Block,
    Cell,
    Column,
    Fact,
    Heading,
    KeyValues,
    Levels,
    Named,
    Note,
    Row,
    Section,
    Table,
)
from tensorlens.render.figures import NOT_AVAILABLE, counted, duration, size
from tensorlens.render.source import clipped
from tensorlens.render.text import TextRenderer

_SERIES = 60
"""Looks in the chart of peaks."""
_CENSUS_TIME_FRACTION = 0.02
"""Fraction of the time that censuses, which stop the program, may take."""
_MIN_CENSUS_INTERVAL = 2.0
"""Seconds between two censuses."""
_ROWS = 10
"""Rows of each table if the height is unlimited."""
_SORTS: Mapping[str, str] = {"Now": "nbytes", "Most": "most", "Blocks": "blocks"}
"""Column that lines can be sorted by to the field of its figure, in the order of the key."""
_MIN_LOOKS = 4
_MIN_GROWTH, _GROWTH_SHARE = 1 << 24, 0.01
"""Growth is noted if it reaches these bytes and this fraction of the level now."""
_UNKNOWN_LINE = "(allocated before it was watched)"


class ProcessView:
    """Looks at a process again and again, and shows what was seen."""

    def __init__(self, process: ServedProcess) -> None:
        self.message = ""
        """Answer to the last key."""
        self.recording_file = ""
        """Path of the last recording requested by this view."""
        self._process = process
        self._sorts = cycle(_SORTS)
        self._sort = next(self._sorts)
        self._levels = JobLevels("", "", None, (), (), "", False)
        self._lines = LineTotals(0.0, (), ())
        self._tensors = TensorTotals(0.0, 0, (), (), ())
        self._census_at = self._next_census = 0.0
        self._peaks: dict[str, deque[int]] = {}
        self._highest: dict[str, int] = {}
        self._without_tensors: deque[tuple[float, int]] = deque(maxlen=_SERIES)
        """Times of looks, and the resident set minus host tensors."""

    @property
    def is_recording(self) -> bool:
        """Whether a recording that was asked for is on."""
        return self._levels.is_recording

    def recorded(self) -> str:
        """Return the fate of the recording, as the end of a line, once the process has ended."""
        if not self.recording_file:
            return ""
        found = "the recording is in" if Path(self.recording_file).exists() else "it did not write"
        return f"; {found} {self.recording_file}"

    def look(self, *, census: bool | None = None) -> None:
        """Ask the process for its figures.

        Args:
            census: for its tensors too, which stops it; by default only now and then.

        Raises:
            TensorlensError: it has ended, or does not answer.
        """
        if census is None:
            census = time.monotonic() >= self._next_census
        found = restored(Look, self._process.ask(Ask.LOOK, census=census))
        self._levels, self._lines = found.levels, found.lines
        for each in found.levels.devices:
            most = max(each.peak, each.allocated)
            self._peaks.setdefault(each.device, deque(maxlen=_SERIES)).append(most)
            self._highest[each.device] = max(most, self._highest.get(each.device, -1))
            if each.device == "cpu" and min(each.allocated, each.reserved) >= 0:
                self._without_tensors.append((time.monotonic(), each.reserved - each.allocated))
        if found.tensors is not None:
            self._take_census(found.tensors)

    def _take_census(self, found: TensorTotals) -> None:
        # the first census imports modules: neither its time nor the levels before it are typical
        is_first = not self._next_census
        if len(self._without_tensors) < _MIN_LOOKS:
            self._without_tensors.clear()
        self._tensors = found
        self._census_at = time.monotonic()
        pause = 0.0 if is_first else found.seconds / _CENSUS_TIME_FRACTION
        self._next_census = self._census_at + max(pause, _MIN_CENSUS_INTERVAL)

    def sort_on(self) -> None:
        """Sort the lines by the next order."""
        self._sort = next(self._sorts)

    def to_dict(self) -> dict[str, Any]:
        """Return what was seen as plain data; figures that are not known are None."""
        levels = asdict(self._levels)
        levels["devices"] = [
            {key: None if value == base.UNKNOWN else value for key, value in device.items()}
            for device in levels["devices"]
        ]
        return {
            "schema": "tensorlens.live",
            "version": 1,
            "contains_source": False,
            "pid": self._process.pid,
            "levels": levels,
            "lines": asdict(self._lines),
            "tensors": asdict(self._tensors),
        }

    def text(self, renderer: TextRenderer, height: int | None, keys: str = "") -> str:
        """Return what was seen as text that is at most ``height`` lines high.

        Args:
            renderer: knows the width and the encoding.
            height: None shows ten rows of each table.
            keys: line on the keys, at the end.
        """
        if height is None:
            return renderer.render_blocks([*self._blocks(_ROWS, _ROWS, keys, renderer.width)])
        fixed = renderer.render_blocks([*self._blocks(1, 1, keys, renderer.width)]).count("\n")
        free = max(2, 2 + height - fixed)
        # the tensors get what the lines do not need, and the other way round
        lines = min(len(self._lines.rows), max(free // 2, free - len(self._tensors.rows)))
        blocks = self._blocks(lines, free - lines, keys, renderer.width)
        shown = renderer.render_blocks([*blocks]).splitlines()
        # the keys stay in sight however low the terminal is
        return "\n".join(shown if len(shown) <= height else [*shown[: height - 1], shown[-1]])

    def _blocks(
        self, lines_shown: int, tensors_shown: int, keys: str, width: int
    ) -> Iterator[Block]:
        levels, lines, tensors = self._levels, self._lines, self._tensors
        title = clipped(self._title(levels), width, "...")
        yield Section((Heading(title), self._devices(levels, tensors)))
        yield _line_table(lines, self._sort, lines_shown)
        yield _tensor_table(tensors, tensors_shown)
        notes = [*levels.notes, *lines.notes, *tensors.notes, *self._host_growth()]
        remarks = [Note(each, label="note") for each in dict.fromkeys(notes)]
        for text in (self._state(lines, tensors), self.message or levels.recording, keys):
            remarks += [Note(text)] if text else []
        yield Section(tuple(remarks))

    def _title(self, levels: JobLevels) -> str:
        steps = "" if levels.steps is None else counted(levels.steps, "step")
        facts = [each for each in (f"Process {self._process.pid}", levels.rank, steps) if each]
        return f"{', '.join(facts)}: {levels.command}"

    def _devices(self, levels: JobLevels, tensors: TensorTotals) -> KeyValues:
        """Return the levels of each device, now and over time, and what they are by role."""
        roles: dict[str, list[str]] = {each.device: [] for each in levels.devices}
        for total in tensors.roles:
            text = f"{total.role} {size(total.nbytes)}".replace(" ", NO_BREAK)
            roles.setdefault(total.device, []).append(text)
        facts: dict[str, list[Levels | Named]] = {}
        for each in levels.devices:
            peak, series = self._highest[each.device], tuple(self._peaks[each.device])
            text = (
                f"{_size(each.allocated)} allocated, peak {_size(peak)},"
                f" {_size(each.reserved)} {'resident' if each.device == 'cpu' else 'reserved'}"
            )
            facts[each.device] = [Named(each.device, text)]
            if len(series) > 1 and min(series) >= 0:
                told = f"peaks, {size(min(series))} to {size(max(series))}"
                facts[each.device].append(Levels("", series, told))
        for device, texts in roles.items():
            shown = facts.setdefault(device, [])
            shown += [Named("" if shown else device, ", ".join(texts))] if texts else []
        return KeyValues(tuple(Fact("", each) for several in facts.values() for each in several))

    def _host_growth(self) -> Iterator[str]:
        """Yield a note if the resident set without the host's tensors grows.

        The lowest levels of the two halves are compared: any one may include a kernel's scratch.
        """
        series = [*self._without_tensors]
        if len(series) < _MIN_LOOKS:
            return
        half = len(series) // 2
        before, now = (min(each for _, each in part) for part in (series[:half], series[half:]))
        if now - before >= max(_MIN_GROWTH, _GROWTH_SHARE * now):
            yield (
                f"host memory without tensors grew by {size(now - before)} in"
                f" {series[-1][0] - series[0][0]:.0f} s: tensorlens leaks tells what holds it"
            )

    def _state(self, lines: LineTotals, tensors: TensorTotals) -> str:
        age = max(0.0, time.monotonic() - self._census_at)
        taken = duration(round(tensors.seconds * 10**9))
        census = f"{counted(tensors.count)} {age:.0f} s ago, in {taken}"
        return f"lines of the last {lines.seconds:.0f} s; {census}" if lines.rows else census


def _line_table(lines: LineTotals, sort: str, shown: int) -> Table:
    several = len({each.device for each in lines.rows}) > 1
    columns = [Column(f"{title} *" if title == sort else title) for title in _SORTS]
    rows = sorted(lines.rows, key=lambda row: (getattr(row, _SORTS[sort]), row.most), reverse=True)
    columns += [Column("Device", "text")] if several else []
    cells = (
        (
            *(size(each.nbytes), size(each.most), f"{each.blocks:,}"),
            *((each.device,) if several else ()),
            each.line or _UNKNOWN_LINE,
        )
        for each in rows[:shown]
    )
    return Table((*columns, Column("Line", "line")), tuple(cells))


def _tensor_table(tensors: TensorTotals, rows: int) -> Table:
    several = len({each.device for each in tensors.rows}) > 1
    columns = [Column("Size"), Column("Role", "text"), Column("Shape of one", "text", most=20)]
    columns += [Column("Device", "text")] if several else []
    cells = (
        Row(
            (
                *(size(each.nbytes), each.role, each.shape),
                *((each.device,) if several else ()),
                Cell(readable_name(each.name) or "(no name)", count=each.count),
            )
        )
        for each in tensors.rows[:rows]
    )
    return Table((*columns, Column("Tensor", "name")), tuple(cells))


def _size(nbytes: int) -> str:
    return NOT_AVAILABLE if nbytes < 0 else size(nbytes)
