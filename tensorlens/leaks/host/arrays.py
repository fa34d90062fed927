"""NumPy arrays that may explain the growth of host memory.

An array does not tell when it was made. So arrays have to account for the growth: together as what
all steps made, by their size as what one step makes, or one by itself that grew.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tensorlens.heap import live_objects
from tensorlens.heap.paths import reference_paths
from tensorlens.heap.untracked_arrays import OwnedArray, owned_arrays
from tensorlens.units import format_bytes

_TOLERANCE = 0.08
"""Fraction by which sizes may miss the growth: the C heap rounds up, large sizes to pages."""
_TOLERANCE_OF_ONE = 0.02
"""The same for one array alone, which may be of any size."""
_MAX_PER_STEP = 16
"""Arrays of one size that one step may leave."""


@dataclass(frozen=True, slots=True)
class HostGrowth:
    """By how much host memory grew."""

    rate: float
    """Bytes a step."""
    steps: int
    """Number of steps in which that was seen."""
    made: int
    """Number of all steps."""

    def fits(self, count: int, nbytes: int) -> bool:
        """Return whether all steps, or those that count, may have left these arrays."""
        low = self.rate * self.steps * (1 - _TOLERANCE)
        return count >= self.steps and low <= nbytes <= self.rate * self.made * (1 + _TOLERANCE)

    def is_multiple(self, count: int, size: int) -> bool:
        """Return whether a step may have left one or a few arrays of a size, beside older ones."""
        several = round(self.rate / size) if size else 0
        if not 1 <= several <= _MAX_PER_STEP or count < several * self.steps:
            return False
        return abs(several * size - self.rate) <= _TOLERANCE * self.rate


def growing_arrays(grown: HostGrowth) -> tuple[str, str] | None:
    """Describe the arrays that may have grown, with a path to one; None if none fit."""
    if "numpy" not in sys.modules:
        return None
    objects = live_objects()
    arrays = owned_arrays(objects)
    chosen = _chosen(arrays, grown)
    if not chosen:
        return None
    skip = {id(arrays), id(objects), id(chosen), *map(id, arrays), *map(id, chosen)}
    return _text(chosen), _path(chosen[0].array, skip)


def _chosen(arrays: Sequence[OwnedArray], grown: HostGrowth) -> list[OwnedArray]:
    sizes: dict[int, list[OwnedArray]] = {}
    kinds: dict[int, list[OwnedArray]] = {}
    for each in arrays:
        sizes.setdefault(each.nbytes, []).append(each)
        kinds.setdefault(each.held_in, []).append(each)
    for group in (*sizes.values(), *kinds.values()):
        if grown.fits(len(group), sum(each.nbytes for each in group)):
            return group
    for size, group in sizes.items():
        if grown.is_multiple(len(group), size):
            return group
    whole = grown.rate * grown.made
    most = _TOLERANCE_OF_ONE * whole
    alone = (group for size, group in sizes.items() if abs(size - whole) <= most)
    return next((group for group in alone if len(group) == 1), [])


def _text(chosen: Sequence[OwnedArray]) -> str:
    sizes = {each.nbytes for each in chosen}
    if len(chosen) == 1:
        return f"one that is {format_bytes(chosen[0].nbytes)} now"
    if len(sizes) == 1:
        return f"{len(chosen):,} of {format_bytes(chosen[0].nbytes)} each"
    total = sum(each.nbytes for each in chosen)
    return f"{len(chosen):,} with {format_bytes(total)} in all"


def _path(array: Any, skip: Collection[int]) -> str:
    """Return the shortest path; empty if none is seen, as in a dict of arrays alone."""
    paths = reference_paths([array], skip=skip)[0]
    return next((str(each) for each in paths if each.references[0].kind != "unknown"), "")
