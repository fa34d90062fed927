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
"""Lines that each of many devices has."""
_FOR_PEAKS = 0.6
"""Share of the lines that are there for their peaks; the others are for what they left."""
_LEAST_RISE = 0.01
"""Share of the highest peak that a line has to add to be there for its own."""
_LEAST_GROWTH = 0.001
"""The same of what a line left, to be marked for it."""
_FEW_ROWS = 12
"""A single function of so few rows is its own overview."""
FEW_FUNCTIONS = 6
"""A text shows all of so many functions line by line."""


@dataclass(frozen=True, slots=True)
class LineFigures:
    """A line's figures on a device, or on several where they are the same."""

    function: FunctionLayout
    row: ShownLine
    entry: Entry

    @property
    def peak(self) -> int:
        """The line's peak in bytes; 0 where it is unknown."""
        return self.entry.memory.peak or 0

    @property
    def growth(self) -> int:
        """Bytes that can have stayed, less those of the net that were given back elsewhere."""
        memory = self.entry.memory
        net = memory.net or 0
        return net if memory.growth is None or net < 0 else 2 * memory.growth - net

    @property
    def text(self) -> str:
        """``nets/train.py:14 in train``."""
        return f"{self.place} in {self.qualname}"

    @property
    def place(self) -> str:
        """``nets/train.py:14``; of a library ``modeling_gpt2.py:703``, as paths there are long."""
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
    """The line that rose to the highest peak of each device."""
    growths: tuple[LineFigures, ...]
    """The line that grew most on each device."""
    places: tuple[LineFigures, ...]
    """Some ``MOST`` lines, by device and peak; empty where the tables are few lines themselves."""

    def is_folded(self, function: FunctionLayout) -> bool:
        """Whether none of a function's lines is among the places, and none has failed."""
        shown = any(each.function is function for each in self.places)
        return bool(self.places) and not shown and not function.raised

    def is_peak(self, entry: Entry) -> bool:
        """Whether it is of the line of a device's highest peak."""
        return any(each.entry is entry for each in self.peaks)

    def is_growth(self, entry: Entry) -> bool:
        """Whether it is of the line of a device's most that stayed."""
        return any(each.entry is entry for each in self.growths)


def overview(functions: Sequence[FunctionLayout]) -> Overview:
    """Return the overview of functions whose figures can be compared.

    A line whose peak is that of another function's to the byte, and which rose further to it, ran
    less often or took longer, only called the other: it is left out.
    """
    devices = _of_devices(functions)
    # of many devices few lines each
    most = max(_FEWEST, MOST // len(devices)) if devices else 0
    peaks: list[LineFigures] = []
    growths: list[LineFigures] = []
    places: list[LineFigures] = []
    for found in devices.values():
        own = [*_without_callers(found)]
        # a level that no line rose to was there before
        top = max(each.peak for each in found)
        risen = sorted((e for e in own if e.peak and _rise(e) > 0), key=lambda each: -each.peak)
        grown = sorted((e for e in own if e.growth > 0), key=lambda each: -each.growth)
        peaks += [each for each in risen[:1] if each.peak == top]
        # a scalar that was replaced is no growth to look at
        growths += [each for each in grown[:1] if each.growth > _LEAST_GROWTH * top]
        half = round(most * _FOR_PEAKS)
        taking = [e for at, e in enumerate(risen) if not at or _rise(e) > _LEAST_RISE * top]
        chosen: list[LineFigures] = taking[:half]
        for each in (*grown, *taking[half:]):
            if len(chosen) < most and all(each.entry is not one.entry for one in chosen):
                chosen.append(each)
        places += sorted(chosen, key=lambda each: -each.peak)
    rows = sum(len(function.body) for function in functions)
    is_short = len(functions) == 1 and rows <= _FEW_ROWS
    return Overview(_once(peaks), _once(growths), () if is_short else _once(places))


def by_peak(functions: Iterable[FunctionLayout]) -> list[FunctionLayout]:
    """Return functions by their highest peak, those with the same in their order."""
    return sorted(functions, key=lambda each: -highest(each))


def highest(function: FunctionLayout) -> int:
    """Return the highest peak of a function in bytes, 0 where none is known."""
    return max((entry.memory.peak or 0 for entry in function.entries), default=0)


def _of_devices(functions: Iterable[FunctionLayout]) -> dict[str, list[LineFigures]]:
    found: dict[str, list[LineFigures]] = {}
    for function in functions:
        for row in function.rows:
            for entry in row.entries:
                for device in entry.devices:
                    found.setdefault(device, []).append(LineFigures(function, row, entry))
    # a card's memory runs out first
    return dict(sorted(found.items(), key=lambda item: item[0].startswith("cpu")))


def _once(places: Iterable[LineFigures]) -> tuple[LineFigures, ...]:
    """Return places without those that stand for several devices and were there already."""
    return tuple({id(each.entry): each for each in places}.values())


def _without_callers(places: Sequence[LineFigures]) -> Iterator[LineFigures]:
    spans: dict[int, list[tuple[tuple[int, int, int], FunctionLayout]]] = {}
    for each in places:
        if each.peak and _rise(each) > 0:
            spans.setdefault(each.peak, []).append((_span(each), each.function))
    for each in places:
        alike = spans.get(each.peak, ())
        if not any(span < _span(each) and by is not each.function for span, by in alike):
            yield each


def _span(place: LineFigures) -> tuple[int, int, int]:
    """Return what a caller has more of than what it calls: how far it rose, and the time.

    What is called may be called from elsewhere as well, more often: then times say nothing.
    """
    line = place.row.line
    return _rise(place), -line.hits, line.time_ns


def _rise(place: LineFigures) -> int:
    memory = place.entry.memory
    # files of before it was kept do not have it
    return place.peak if memory.rise is None else memory.rise
