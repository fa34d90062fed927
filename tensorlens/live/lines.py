"""Live bytes of a job by the line that allocated them."""

from __future__ import annotations

import time
from contextlib import suppress

from tensorlens.frameworks.base import Steps
from tensorlens.frameworks.registry import adapters
from tensorlens.guards import reason
from tensorlens.live.protocol import LineTotal, LineTotals, Sort
from tensorlens.render.source import place

_ROWS = 40
_NO_LINES = (
    "the lines are n/a: the counter of host memory does not tell which line allocates (see"
    " tensorlens doctor)"
)


class LiveLines:
    """Sums of live blocks by the line that allocated them, from its making on."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._followed: list[Steps] = []
        self._notes: list[str] = []
        for each in adapters():
            try:
                self._followed.append(each.follow())
            except Exception as error:
                self._notes.append(f"{each.name}: lines are not noted: {reason(error)}")
        self._most: dict[tuple[int, int], int] = {}
        """Number of the framework and of the line to the most bytes."""

    def totals(self, sort: Sort) -> LineTotals:
        """Return the first lines in an order."""
        found = {
            (number, birth): (blocks, nbytes)
            for number, steps in enumerate(self._followed)
            for birth, (blocks, nbytes) in steps.figures().lines.items()
        }
        for key, (_, nbytes) in found.items():
            self._most[key] = max(nbytes, self._most.get(key, 0))

        def order(key: tuple[int, int]) -> tuple[int, int]:
            most, (blocks, nbytes) = self._most[key], found.get(key, (0, 0))
            return {Sort.NOW: nbytes, Sort.MOST: most, Sort.BLOCKS: blocks}[sort], most

        keys = sorted(self._most, key=order, reverse=True)
        notes = [*self._notes, *(note for steps in self._followed for note in steps.notes())]
        if self._followed and not found:
            notes.append(_NO_LINES)
        return LineTotals(
            seconds=time.monotonic() - self._start,
            rows=tuple(self._row(key, found.get(key, (0, 0))) for key in keys[:_ROWS]),
            notes=tuple(notes),
        )

    def _row(self, key: tuple[int, int], figures: tuple[int, int]) -> LineTotal:
        steps, birth = self._followed[key[0]], key[1]
        line = steps.line(birth)
        blocks, nbytes = figures
        text = place(line, function=True) if line is not None else ""
        return LineTotal(text, steps.device(birth), nbytes, self._most[key], blocks)

    def close(self) -> None:
        """Note lines no more."""
        for steps in self._followed:
            with suppress(Exception):
                steps.close()
