"""Source files with the bytes of each line: what was resident at the peak, what backward took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorlens.records.events import EventLog
from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import printable, short_path

_AROUND = 4
_FOLD_FROM = 4


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A line of a file, or a run of lines that have no bytes and are left out."""

    lineno: int
    source: str
    resident: int = 0
    """Bytes at the instant that are counted for it."""
    backward: int = 0
    """Bytes handed out in backward that go back to it."""
    folded: int = 0
    """How many lines it stands for; 0 for a line of its own."""


@dataclass(frozen=True, slots=True)
class HeatFile:
    """A file that has bytes."""

    name: str
    rows: tuple[HeatRow, ...]
    resident: int
    backward: int


def heat_files(
    log: EventLog,
    resident: Mapping[SourceLine | None, int],
    backward: Mapping[SourceLine | None, int],
) -> tuple[HeatFile, ...]:
    """Return the files whose source the recording has, those with the most bytes first."""
    found = []
    for filename, lines in log.sources.items():
        here = _by_number(resident, filename), _by_number(backward, filename)
        if any(here):
            found.append(
                HeatFile(
                    name=printable(short_path(filename)),
                    rows=_rows(lines, *here),
                    resident=sum(here[0].values()),
                    backward=sum(here[1].values()),
                )
            )
    return tuple(sorted(found, key=lambda each: (-each.resident - each.backward, each.name)))


def _by_number(sizes: Mapping[SourceLine | None, int], filename: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for line, nbytes in sizes.items():
        if line is not None and line.filename == filename and nbytes:
            found[line.lineno] = found.get(line.lineno, 0) + nbytes
    return found


def _rows(
    lines: Sequence[str], resident: Mapping[int, int], backward: Mapping[int, int]
) -> tuple[HeatRow, ...]:
    rows: list[HeatRow] = []
    for first, last in _stretches({*resident, *backward}, len(lines)):
        rows += _gap(rows[-1].lineno + 1 if rows else 1, first - 1, lines)
        sources = [printable(source) for source in lines[first - 1 : last]]
        rows += [
            HeatRow(number, source, resident.get(number, 0), backward.get(number, 0))
            for number, source in enumerate(sources, first)
        ]
    # a line behind the file's end is of a file that has changed since
    behind = sorted(number for number in {*resident, *backward} if not 0 < number <= len(lines))
    if len(lines) > (rows[-1].lineno if rows else 0):
        rows += _gap(rows[-1].lineno + 1 if rows else 1, len(lines), lines)
    rows += [
        HeatRow(number, "", resident.get(number, 0), backward.get(number, 0)) for number in behind
    ]
    return tuple(rows)


def _gap(first: int, last: int, lines: Sequence[str]) -> list[HeatRow]:
    """Return the lines between two stretches: one row for them unless they are few."""
    count = last - first + 1
    if count < _FOLD_FROM:
        return [HeatRow(number, printable(lines[number - 1])) for number in range(first, last + 1)]
    return [HeatRow(last, "", folded=count)]


def _stretches(numbers: Iterable[int], length: int) -> list[tuple[int, int]]:
    """Return the first and last lines of what is shown: the lines with bytes and some around."""
    found: list[tuple[int, int]] = []
    for number in sorted(number for number in numbers if 0 < number <= length):
        first, last = max(number - _AROUND, 1), min(number + _AROUND, length)
        if found and first <= found[-1][1] + 1:
            first = found.pop()[0]
        found.append((first, last))
    return found
