"""Residue of one stretch of a program: not growth, but what is still there."""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import Steps
from tensorlens.frameworks.registry import adapters
from tensorlens.frameworks.survivors import Survivor
from tensorlens.leaks.growth.retained import paths_of
from tensorlens.leaks.merged_steps import follow
from tensorlens.leaks.report import source_of
from tensorlens.records.tensors import SourceLine

_MOST_LINES = 10
"""Lines of which is told who holds what they made, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class LineResidue:
    """Residue of one line, or of one device where lines are not known."""

    device: str
    nbytes: int
    tensors: int | None
    """None where only bytes are counted."""
    born: SourceLine | None = None
    source: str = ""
    """The text of ``born``."""
    name: str = ""
    """The name of the largest of them."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    path: str = ""
    """The shortest path that holds the largest; empty where none could be found."""


class Stretch:
    """A stretch of a program, from its making to :meth:`end`.

    Raises:
        UsageError: no framework was imported, or nobody here tells one block from another.
    """

    def __init__(self) -> None:
        found = adapters()
        if not found:
            raise UsageError("no framework was imported")
        self._steps: Steps = follow(found)
        self._steps.begin()
        if self._steps.left(0) is None:
            self._steps.close()
            raise UsageError("the counter of host memory that is in use does not know blocks")
        self._allocated = self._steps.figures().allocated

    def end(self) -> None:
        """Stop: later allocations do not belong to it."""
        self._steps.begin()

    def remains(self) -> list[LineResidue]:
        """Return what is still there when the collector has run, the most bytes first."""
        gc.collect()
        found = self._by_line()
        found += self._of_devices({each.device for each in found})
        return sorted(found, key=lambda each: -each.nbytes)

    def close(self) -> None:
        """Follow no longer."""
        self._steps.close()

    def _by_line(self) -> list[LineResidue]:
        left = self._steps.left(0)
        by_line: dict[int, list[int]] = {}
        for row, step in enumerate(left.step if left is not None else ()):
            if step == 0 and left is not None:
                by_line.setdefault(left.birth[row], []).append(row)
        if left is None or not by_line:
            return []
        sums = {birth: sum(left.size[row] for row in rows) for birth, rows in by_line.items()}
        lines = sorted(sums, key=lambda birth: -sums[birth])
        largest = [max(by_line[birth], key=lambda row: left.size[row]) for birth in lines]
        shown = largest[:_MOST_LINES]
        holdings = self._steps.holdings([left.address[row] for row in shown])
        known = [_known(each) for each in holdings.survivors]
        paths = _paths(holdings.survivors)
        del holdings
        blank = ("", "", ())
        return [
            self._of_line(
                birth,
                sums[birth],
                len(by_line[birth]),
                known[place] if place < len(known) else blank,
                paths[place] if place < len(paths) else "",
            )
            for place, birth in enumerate(lines)
        ]

    def _of_line(
        self,
        birth: int,
        nbytes: int,
        tensors: int,
        known: tuple[str, str, tuple[int, ...]],
        path: str,
    ) -> LineResidue:
        line = self._steps.line(birth)
        name, dtype, shape = known
        device = self._steps.device(birth)
        return LineResidue(device, nbytes, tensors, line, source_of(line), name, dtype, shape, path)

    def _of_devices(self, told: Collection[str]) -> list[LineResidue]:
        found = []
        for device, now in self._steps.figures().allocated.items():
            before = self._allocated.get(device, 0)
            if device != "cpu" and device not in told and before >= 0 and now > before:
                found.append(LineResidue(device, now - before, None))
        return found


def _known(survivor: Survivor) -> tuple[str, str, tuple[int, ...]]:
    return survivor.name, survivor.dtype, survivor.shape


def _paths(survivors: Sequence[Survivor]) -> list[str]:
    """Return the shortest path to each that can be seen, and on to what hangs below it."""
    paths = []
    found = paths_of([each.item for each in survivors])
    for survivor, own in zip(survivors, found, strict=True):
        is_below = not (survivor.tensors or survivor.arrays)
        onward = survivor.holders[0].references if is_below and survivor.holders else ()
        texts = [str(own[0])] if own else []
        paths.append(" -> ".join([*texts, *(each.text for each in onward)]))
    return paths
