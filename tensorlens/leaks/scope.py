"""Residue of a scope of a program, such as a test: the blocks of it that are still there."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorlens.errors import UsageError
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.registry import adapters
from tensorlens.frameworks.retention import LeftBlock, Survivor
from tensorlens.heap.paths import reference_paths
from tensorlens.leaks.report import source_of
from tensorlens.leaks.watched_loop import NO_BLOCKS, FollowedLoop
from tensorlens.records.tensors import SourceLine

_MAX_LINES = 10
"""Lines whose holders are told, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class LineResidue:
    """Residue of one line, or of one device if lines are not known."""

    device: str
    nbytes: int
    tensors: int | None
    """Number of tensors; None if only bytes are counted."""
    born: SourceLine | None = None
    source: str = ""
    """The text of ``born``."""
    name: str = ""
    """The name of the largest tensor."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    path: str = ""
    """The shortest path that holds the largest tensor; empty if none was found."""


class AllocationScope:
    """A scope of a program, from the construction to :meth:`end`.

    Raises:
        UsageError: no framework was imported, or single blocks are not counted.
    """

    def __init__(self) -> None:
        found = adapters()
        if not found:
            raise UsageError("no framework was imported")
        self._steps = FollowedLoop(found)
        self._steps.begin()
        if all(part.left() is None for part in self._steps.parts.values()):
            self._steps.close()
            raise UsageError(NO_BLOCKS)
        self._allocated = self._steps.allocated()

    def end(self) -> None:
        """End the scope: later allocations do not belong to it."""
        self._steps.begin()

    def remains(self) -> list[LineResidue]:
        """Run the collector, and return the residue by line, the most bytes first."""
        gc.collect()
        found = [each for part in self._steps.parts.values() for each in _by_line(part)]
        told = {each.device for each in found}
        for device, now in self._steps.allocated().items():
            before = self._allocated.get(device, 0)
            if device != "cpu" and device not in told and before >= 0 and now > before:
                found.append(LineResidue(device, now - before, None))
        return sorted(found, key=lambda each: -each.nbytes)

    def close(self) -> None:
        """Stop following."""
        self._steps.close()


def _by_line(steps: Steps) -> list[LineResidue]:
    births: dict[int, list[LeftBlock]] = {}
    for block in steps.left() or ():
        if block.step == 0:
            births.setdefault(block.birth, []).append(block)
    found = []
    for birth, own in births.items():
        line = steps.line(birth)
        nbytes = sum(block.size for block in own)
        found.append(LineResidue(steps.device(birth), nbytes, len(own), line, source_of(line)))
    lines = sorted(zip(found, births.values(), strict=True), key=lambda pair: -pair[0].nbytes)
    largest = [max(own, key=lambda block: block.size).address for _, own in lines[:_MAX_LINES]]
    survivors = steps.holdings(largest).survivors if lines else []
    shown = [
        replace(each, name=known.name, dtype=known.dtype, shape=known.shape, path=path)
        for (each, _), known, path in zip(lines, survivors, _paths(survivors), strict=False)
    ]
    return [*shown, *(each for each, _ in lines[len(shown) :])]


def _paths(survivors: Sequence[Survivor]) -> list[str]:
    """Return the shortest path to each survivor, continued to blocks below a tensor."""
    paths = []
    found = reference_paths([each.item for each in survivors])
    for survivor, own in zip(survivors, found, strict=True):
        onward = survivor.holders[0].references if survivor.is_below else ()
        texts = [str(own[0])] if own else []
        paths.append(" -> ".join([*texts, *(each.text for each in onward)]))
    return paths
