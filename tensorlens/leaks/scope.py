"""Residue of a scope of a program, such as a test: the blocks of it that are still there."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

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
    if not births:
        return []
    sizes = {birth: sum(block.size for block in own) for birth, own in births.items()}
    lines = sorted(births, key=lambda birth: -sizes[birth])
    largest = [max(births[birth], key=lambda block: block.size) for birth in lines[:_MAX_LINES]]
    survivors = steps.holdings([block.address for block in largest]).survivors
    survivors += [Survivor(0, 0)] * (len(lines) - len(largest))
    found = []
    for birth, known, path in zip(lines, survivors, _paths(survivors), strict=True):
        line, device = steps.line(birth), steps.device(birth)
        facts = device, sizes[birth], len(births[birth]), line, source_of(line)
        found.append(LineResidue(*facts, known.name, known.dtype, known.shape, path))
    return found


def _paths(survivors: Sequence[Survivor]) -> list[str]:
    """Return the shortest path to each survivor, continued to blocks below a tensor."""
    paths = []
    found = reference_paths([each.item for each in survivors])
    for survivor, own in zip(survivors, found, strict=True):
        onward = survivor.holders[0].references if survivor.is_below else ()
        texts = [str(own[0])] if own else []
        paths.append(" -> ".join([*texts, *(each.text for each in onward)]))
    return paths
