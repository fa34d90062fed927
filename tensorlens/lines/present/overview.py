"""The overview of a line report: its peak, the lines to look at first, the functions by peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorlens.lines.present.layout import Entry, FunctionLayout, ShownLine
from tensorlens.render.source import printable, short_path
from tensorlens.user_code import is_foreign

MOST = 10
_FEWEST = 2
"""Least number of lines per device, if there are many devices."""
_SHARE_BY_PEAK = 0.6
"""Share of the lines chosen by peak; the others are chosen by growth."""
_LEAST_RISE = 0.01
"""Least rise of a line chosen by peak, as a share of the highest peak."""
_LEAST_GROWTH = 0.001
"""Least growth of a marked line, as a share of the highest peak."""
_FEW_ROWS = 12
"""Rows up to which a report of one function has no list of lines to look at first."""
FEW_FUNCTIONS = 6
"""Number of functions up to which a text shows the lines of all."""


@dataclass(frozen=True, slots=True)
class LineFigures:
    """A line's figures on one device, or on several with equal figures."""

    function: FunctionLayout
    row: ShownLine
    entry: Entry

    @property
    def peak(self) -> int:
        """The line's peak in bytes; 0 if unknown."""
        return self.entry.memory.peak or 0

    @property
    def growth(self) -> int:
        """Bytes that can have stayed, minus those of the net that were freed elsewhere."""
        memory = self.entry.memory
        net = memory.net or 0
        return net if memory.growth is None or net < 0 else 2 * memory.growth - net

    @property
    def text(self) -> str:
        """``nets/train.py:14 in train``."""
        return f"{self.place} in {self.qualname}"

    @property
    def place(self) -> str:
        """``nets/train.py:14``; in a library only ``modeling_gpt2.py:703``."""
        filename = self.function.function.filename
        name = Path(filename).name if is_foreign(filename) else short_path(filename)
        return printable(f"{name}:{self.row.line.lineno}")

    @property
    def qualname(self) -> str:
        """The name of its function."""
        return printable(self.function.function.qualname)


@dataclass(frozen=True, slots=True)
class Overview:
    """The lines that matter most, on all devices."""

    peaks: tuple[LineFigures, ...]
    """For each device, the line that rose to its highest peak."""
    growths: tuple[LineFigures, ...]
    """For each device, the line that grew most."""
    places: tuple[LineFigures, ...]
    """About ``MOST`` lines, by device and peak; empty if the tables are short."""

    def is_folded(self, function: FunctionLayout) -> bool:
        """Whether none of a function's lines is among the places, and none raised."""
        shown = any(each.function is function for each in self.places)
        return bool(self.places) and not shown and not function.raised

    def is_peak(self, entry: Entry) -> bool:
        """Whether it belongs to a line of :attr:`peaks`."""
        return any(each.entry is entry for each in self.peaks)

    def is_growth(self, entry: Entry) -> bool:
        """Whether it belongs to a line of :attr:`growths`."""
        return any(each.entry is entry for each in self.growths)


def overview(functions: Sequence[FunctionLayout]) -> Overview:
    """Return the overview of functions whose figures can be compared.

    Lines that only called another one are left out: they have the same peak, to the byte, as a
    line of another function, and rose further to it, ran less often or took longer.
    """
    devices = _lines_by_device(functions)
    # few lines each if there are many devices
    most = max(_FEWEST, MOST // len(devices)) if devices else 0
    peaks: list[LineFigures] = []
    growths: list[LineFigures] = []
    places: list[LineFigures] = []
    for lines in devices.values():
        own = [*_without_callers(lines)]
        # a peak that no line rose to was there before
        top = max(each.peak for each in lines)
        risen = sorted((e for e in own if e.peak and _rise(e) > 0), key=lambda each: -each.peak)
        grown = sorted((e for e in own if e.growth > 0), key=lambda each: -each.growth)
        peaks += [each for each in risen[:1] if each.peak == top]
        # ignore replaced scalars
        growths += [each for each in grown[:1] if each.growth > _LEAST_GROWTH * top]
        half = round(most * _SHARE_BY_PEAK)
        by_rise = [e for at, e in enumerate(risen) if not at or _rise(e) > _LEAST_RISE * top]
        chosen: list[LineFigures] = by_rise[:half]
        for each in (*grown, *by_rise[half:]):
            if len(chosen) < most and all(each.entry is not one.entry for one in chosen):
                chosen.append(each)
        places += sorted(chosen, key=lambda each: -each.peak)
    rows = sum(len(function.body) for function in functions)
    is_short = len(functions) == 1 and rows <= _FEW_ROWS
    return Overview(_once(peaks), _once(growths), () if is_short else _once(places))


def by_peak(functions: Iterable[FunctionLayout]) -> list[FunctionLayout]:
    """Return functions in the order of their highest peaks."""
    return sorted(functions, key=lambda each: -highest(each))


def highest(function: FunctionLayout) -> int:
    """Return the highest peak of a function in bytes, 0 if unknown."""
    return max((entry.memory.peak or 0 for entry in function.entries), default=0)


def _lines_by_device(functions: Iterable[FunctionLayout]) -> dict[str, list[LineFigures]]:
    by_device: dict[str, list[LineFigures]] = {}
    for function in functions:
        for row in function.rows:
            for entry in row.entries:
                for device in entry.devices:
                    by_device.setdefault(device, []).append(LineFigures(function, row, entry))
    # accelerators first: their memory is scarcer
    return dict(sorted(by_device.items(), key=lambda item: item[0].startswith("cpu")))


def _once(places: Iterable[LineFigures]) -> tuple[LineFigures, ...]:
    """Return places, those of several devices only once."""
    return tuple({id(each.entry): each for each in places}.values())


def _without_callers(places: Sequence[LineFigures]) -> Iterator[LineFigures]:
    keys: dict[int, list[tuple[tuple[int, int, int], FunctionLayout]]] = {}
    for each in places:
        if each.peak and _rise(each) > 0:
            keys.setdefault(each.peak, []).append((_caller_key(each), each.function))
    for each in places:
        same_peak = keys.get(each.peak, ())
        if not any(key < _caller_key(each) and by is not each.function for key, by in same_peak):
            yield each


def _caller_key(place: LineFigures) -> tuple[int, int, int]:
    """Return a key that is larger for a caller than for its callee: rise, fewer hits, time.

    Hits come before time, since a callee with other callers can take more time in all.
    """
    line = place.row.line
    return _rise(place), -line.hits, line.time_ns


def _rise(place: LineFigures) -> int:
    memory = place.entry.memory
    # older files have no rise
    return place.peak if memory.rise is None else memory.rise
