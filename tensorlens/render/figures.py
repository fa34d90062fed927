"""Figures for people, the same in text and HTML: as text, as cells with bars, as series."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorlens.render.blocks import Cell, Column, Row, Table
from tensorlens.render.source import printable
from tensorlens.units import format_bytes

NOT_AVAILABLE = "n/a"
_GRID_LINES = 4
"""Lines of a grid behind a picture, about."""
_BELOW_SECONDS = ((10**3, "us"), (10**6, "ms"))
_NUMBERED = re.compile(r"(.+):(\d+)")


def size(count: int | None, *, signed: bool = False) -> str:
    """Return bytes as text in IEC units; ``n/a`` if unknown."""
    return NOT_AVAILABLE if count is None else format_bytes(count, signed=signed)


def exact_size(count: int) -> str:
    """Return bytes as text with their exact number: ``"532.45 MiB (558,317,568 B)"``."""
    return f"{size(count)} ({count:,} B)" if count >= 1024 else size(count)


def duration(time_ns: int) -> str:
    """Return nanoseconds as text: ``"912 ns"``, ``"1.20 ms"``, ``"75.31 s"``."""
    if time_ns < 1000:
        return f"{time_ns} ns"
    for scale, unit in _BELOW_SECONDS:
        # so that 999,999 ns reads 1.00 ms, not 1000.00 us
        if round(time_ns / scale, 2) < 1000:
            return f"{time_ns / scale:.2f} {unit}"
    return f"{time_ns / 10**9:.2f} s"


def device_names(names: Iterable[str]) -> str:
    """Return device names as one text, numbered ones as ranges: ``"cpu, cuda:0,2-7"``."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match:
            numbers.setdefault(f"{match[1]}:", []).append(int(match[2]))
        else:
            numbers[name] = []
    return ", ".join(kind + _ranges(sorted(found)) for kind, found in numbers.items())


def device_sources(devices: Iterable[tuple[str, str, str]]) -> tuple[tuple[str, str], ...]:
    """Return ``(names, "source, precision")`` of devices, equal ones together.

    Args:
        devices: ``(name, source, precision)`` of each.
    """
    alike: dict[str, list[str]] = {}
    for name, *described in devices:
        alike.setdefault(printable(", ".join(filter(None, described))), []).append(name)
    return tuple((printable(device_names(names)), text) for text, names in alike.items())


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )


def counted(number: int, word: str = "tensor") -> str:
    """Return ``1 tensor``, ``1,234 tensors``."""
    ending = "" if number == 1 else "es" if word.endswith("tch") else "s"
    return f"{number:,} {word}{ending}"


def counted_about(tensors: float) -> str:
    """Return ``2 tensors``; for a mean ``about 6 tensors`` or ``less than 1 tensor``."""
    if 0 < tensors < 1:
        return "less than 1 tensor"
    about = "" if tensors == int(tensors) else "about "
    return f"{about}{counted(int(tensors + 0.5))}"


def byte_step(highest: int) -> int:
    """Return a round number of bytes that is about a quarter of ``highest``."""
    power: int = 1024 ** max((highest.bit_length() - 1) // 10, 0)
    for unit in (power // 1024, power):
        for factor in (1, 2, 5, 10, 20, 50, 100, 128, 200, 256, 512):
            if unit and unit * factor * _GRID_LINES >= highest:
                return unit * factor
    return max(power, 1) * 512


def thinned(series: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` levels, including the first and the last."""
    if len(series) <= most:
        return [*series]
    last = len(series) - 1
    return [series[round(at * last / (most - 1))] for at in range(most)]


def heights(series: Sequence[int]) -> list[float]:
    """Return levels scaled to 0 for the lowest and 1 for the highest; equal ones are 0."""
    low, high = min(series), max(series)
    return [(each - low) / (high - low) if high > low else 0.0 for each in series]


def bars(series: Sequence[int], marks: str) -> str:
    """Return a mark for each level: the first for the lowest, the last for the highest."""
    last = len(marks) - 1
    return "".join(marks[math.floor(height * last + 0.5)] for height in heights(series))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that a view leaves out."""

    count: int
    nbytes: int
    """Their bytes; in a difference, the change of their bytes."""
    why: str


def more_rows(hidden: LeftOut | None, what: str, *, signed: bool = False) -> tuple[str, ...]:
    """Return the text on rows of a kind that are not shown; empty if all are."""
    if hidden is None:
        return ()
    why = f" ({hidden.why})" if hidden.why else ""
    return (f"{counted(hidden.count, f'more {what}')}, {size(hidden.nbytes, signed=signed)}{why}",)


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent; empty if the whole is 0."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def size_cell(nbytes: int | None, whole: int) -> Cell:
    """Return a cell of bytes, with a bar for their share of ``whole``."""
    return Cell(size(nbytes), bar=bar(nbytes or 0, whole))


def bar(nbytes: int, whole: int) -> tuple[float, float]:
    """Return the start and end of a bar for a share of ``whole``."""
    return (0.0, max(0.0, min(nbytes / whole, 1.0)) if whole else 0.0)


def share_table(title: str, parts: Iterable[tuple[str, int, str]], whole: int) -> Table:
    """Return a table of parts: label, bytes, colour; with their shares of ``whole`` bytes."""
    rows = (
        Row((Cell(label, swatch=colour), size_cell(nbytes, whole), share(nbytes, whole)))
        for label, nbytes, colour in parts
    )
    return Table((Column(title, "text"), Column("Size"), Column("Share")), tuple(rows))
