"""Host memory that grows and holds no tensors: sampled while a loop runs, told apart at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.host.counters import HeapCounter, child_processes, resident
from tensorlens.heap import live_objects
from tensorlens.heap.paths import reference_paths
from tensorlens.heap.untracked_arrays import OwnedArray, owned_arrays
from tensorlens.leaks.graph_growth import GraphGrowth
from tensorlens.leaks.report import Growth, GrowthKind
from tensorlens.units import format_bytes

_FEWEST = 4
"""Samples without which nothing is said."""
_CHEAP = 0.0005
"""Seconds below which a sample is taken at each look at the loop;"""
_FIRST, _SHARE_OF_FIRST, _SHARE = 8, 20, 1000
"""else when as many times its cost has gone by since the last: of the first ones, of others."""
_SMALLEST = 4096
"""Bytes a step below which growth of the heap is noise."""
_OF_A_TENSOR = 4096
"""Bytes of the C heap that a tensor which is left behind may take beside its storage."""
_FEWEST_OBJECTS = 1000
"""Python objects a step below which they are noise: records of a log, and the watch's own."""
_FREED = 0.25
"""The part of what grew that the collector must have freed for it to be called garbage."""
_OF_A_NODE = 2048
"""Bytes of the C heap that a node of autograd's graph may take, with what it notes of tensors."""
_LEAST_OF_A_NODE = 128
"""Bytes that every node takes."""
_OF_A_LINE = 5
"""Python objects that a line's figures are made of."""
_TOLERANCE = 0.08
"""By which part arrays' sizes may miss the growth: the C heap rounds up, to pages what is large."""
_OF_ONE = 0.02
"""The same for one array alone, which may be of any size."""
_MOST_A_STEP = 16
"""Arrays of one size that one step leaves at most."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """The host's memory after a step; :data:`UNKNOWN` where a figure cannot be had."""

    step: int
    """How many steps had ended."""
    heap: int
    """Bytes of the C heap in use, less what torch's CPU allocator has handed out. Where the C
    library does not tell, of the resident set."""
    objects: int
    """Blocks of Python's own allocator."""
    pinned: int = UNKNOWN
    """Bytes of page-locked memory that a framework has handed out."""
    children: int = UNKNOWN
    """Child processes."""
    children_bytes: int = UNKNOWN
    """Their resident sets."""


class HostSampler:
    """Takes samples, seldom enough that the loop is not held up.

    A heap with many holes takes milliseconds to sum up.

    Args:
        pinned: gives the bytes of page-locked memory, or :data:`UNKNOWN`.
        clock: gives seconds.
    """

    def __init__(
        self,
        pinned: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.samples: list[HostSample] = []
        self._pinned = pinned
        self._clock = clock
        self._heap, self._counts_tensors = _reader()
        self._last = -float("inf")
        self._cost = 0.0
        self._own_heap = self._own_objects = self._freed = 0

    def look(self, step: int, tensors: int) -> None:
        """Take a sample after a step, unless the last one is too near for what it costs.

        Args:
            step: how many steps have ended.
            tensors: bytes that the framework's allocator of host memory has handed out.
        """
        begin = self._clock()
        share = _SHARE_OF_FIRST if len(self.samples) < _FIRST else _SHARE
        if self._cost >= _CHEAP and begin - self._last < share * self._cost:
            return
        self.samples.append(self.now(step, tensors))
        self._last = self._clock()
        cost = self._last - begin
        # another thread may have had its turn
        self._cost = min(cost, 2 * self._cost) if self._cost else cost

    def thin(self, stride: int) -> None:
        """Keep every so many steps' samples alone."""
        self.samples = [each for each in self.samples if each.step % stride == 0]

    def leave_out(self, before: HostSample, after: HostSample) -> None:
        """Leave what a verdict took or freed, between two samples, out of all that follow."""
        self._own_heap += after.heap - before.heap
        self._own_objects += after.objects - before.objects
        self._freed += max(0, before.heap - after.heap)

    def without_garbage(self, sample: HostSample) -> HostSample:
        """Return a sample after a collection without what earlier verdicts freed."""
        return replace(sample, heap=sample.heap - self._freed)

    def now(self, step: int, tensors: int) -> HostSample:
        """Return a sample of now, which does not count among the others."""
        heap = self._heap()
        if heap != UNKNOWN and self._counts_tensors:
            heap -= max(tensors, 0)
        children, nbytes = child_processes()
        return HostSample(
            step=step,
            heap=heap if heap == UNKNOWN else heap - self._own_heap,
            objects=sys.getallocatedblocks() - self._own_objects,
            pinned=UNKNOWN if self._pinned is None else self._pinned(),
            children=children,
            children_bytes=nbytes,
        )


@cache
def _reader() -> tuple[Callable[[], int], bool]:
    """Return what reads the heap, and whether torch's tensors are in it."""
    try:
        return HeapCounter().in_use, True
    except OSError:
        return resident, False


def host_growth(
    samples: Sequence[HostSample],
    warmup: int,
    *,
    tensors_per_step: float = 0.0,
    nodes_per_step: float = 0.0,
    lines: int = 0,
    counts_tensors: bool = True,
    arrays: Callable[[HostGrowth], tuple[str, str] | None] | None = None,
    graph: Callable[[], GraphGrowth | None] | None = None,
    collected: Callable[[], HostSample | None] | None = None,
) -> list[Growth]:
    """Return what of the host's memory grows steadily although no tensors are in it.

    Args:
        samples: in order.
        warmup: how many steps at the beginning do not count.
        tensors_per_step: how many tensors stay behind, each with something of its own in the heap.
        nodes_per_step: how many nodes of autograd's graph these keep.
        lines: of how many lines the watch itself keeps figures of each step.
        counts_tensors: whether tensors have a counter of their own; else they may be what grows.
        arrays: tells what NumPy arrays may be what grew; asked only where the heap grows.
        graph: tells whose graph gets deeper; asked only where nothing else explains the heap.
        collected: runs the collector and takes a sample; the same holds for it.
    """
    memory = "host memory without tensors" if counts_tensors else "host memory"
    counted = [each for each in samples if each.step >= warmup]
    found = [*_children(counted), *_pinned(counted)]
    floor = _SMALLEST + _OF_A_TENSOR * tensors_per_step
    rate = steady_rate([(each.step, each.heap) for each in counted], floor)
    own = _OF_A_LINE * lines
    points = [(each.step, each.objects) for each in counted]
    objects = steady_rate(points, _FEWEST_OBJECTS + own)
    if rate is not None:
        last = counted[-1]
        after = None if collected is None else collected()
        freed = 0.0 if after is None else (last.heap - after.heap) / max(1, last.step)
        if freed >= _FREED * rate:
            freed = min(freed, rate)
            text = f"{memory} grew {_size(freed)} a step: it waited for the collector"
            found.append(Growth(GrowthKind.GARBAGE, text, freed))
            # what the last step left is still in use
            floor, rate = max(floor, _FREED * rate), rate - freed
        if rate >= floor:
            grown = HostGrowth(rate, last.step - counted[0].step, last.step)
            known = None if arrays is None else arrays(grown)
            text = f"{memory} grew {_size(rate)} a step: {'' if counts_tensors else 'tensors, '}"
            found.append(_of_heap(text, rate, objects, known, nodes_per_step, graph))
    elif objects is not None:
        text = (
            f"about {objects - own:,.0f} Python objects a step stay behind, which hold no tensors"
        )
        found.append(Growth(GrowthKind.HOST, text, 0.0))
    return found


def steady_rate(points: Sequence[tuple[int, int]], floor: float) -> float | None:
    """Return by how much a level rises each step; None unless it does so all the time.

    A level that rises at first and then stays, or in a jump or two, or that comes down again, is
    none that grows.

    Args:
        points: steps, in order, and the level after each.
        floor: what a step has to add at least.
    """
    if len(points) < _FEWEST or any(level == UNKNOWN for _, level in points):
        return None
    rate = _rate(points[0], points[-1])
    if rate < floor or rate <= 0:
        return None
    middle = points[len(points) // 2]
    if min(_rate(points[0], middle), _rate(middle, points[-1])) < 0.6 * rate:
        return None
    rates = [_rate(before, after) for before, after in pairwise(points)]
    rising = sum(each >= max(floor, 0.25 * rate) for each in rates)
    falls = min(0, *rates) < -rate
    return None if falls or rising < 0.5 * len(rates) else rate


def _rate(before: tuple[int, int], after: tuple[int, int]) -> float:
    return (after[1] - before[1]) / max(1, after[0] - before[0])


def _of_heap(
    text: str,
    rate: float,
    objects: float | None,
    arrays: tuple[str, str] | None,
    nodes: float,
    deeper: Callable[[], GraphGrowth | None] | None,
) -> Growth:
    if arrays is not None:
        what, path = arrays
        return Growth(GrowthKind.HOST, f"{text}NumPy arrays, {what}", rate, path)
    if objects is not None:
        text += f"with about {objects:,.0f} Python objects a step"
        return Growth(GrowthKind.HOST, text, rate)
    graph = f"{nodes:,.0f} autograd nodes of what stays behind"
    if 0 < rate <= _OF_A_NODE * nodes:
        text += f"probably the {graph}, {_size(rate / nodes)} each"
        return Growth(GrowthKind.GRAPH, text, rate)
    deep = None if deeper is None else deeper()
    if deep is not None and _LEAST_OF_A_NODE <= rate / deep.nodes_per_step <= _OF_A_NODE:
        graph = f"the autograd graph of {deep.name}, which {deep.rate}"
        text += f"probably {graph}, {_size(rate / deep.nodes_per_step)} each; {deep.advice}"
        return Growth(GrowthKind.GRAPH, text, rate, deep.path)
    text += "native libraries, or large bytes/str objects"
    return Growth(GrowthKind.HOST, f"{text}; in part {graph}" if nodes >= 1 else text, rate)


def _pinned(samples: Sequence[HostSample]) -> list[Growth]:
    rate = steady_rate([(each.step, each.pinned) for each in samples], _SMALLEST)
    if rate is None:
        return []
    text = f"page-locked (pinned) host memory grew {_size(rate)} a step"
    return [Growth(GrowthKind.HOST, text, rate)]


def _children(samples: Sequence[HostSample]) -> list[Growth]:
    if steady_rate([(each.step, each.children) for each in samples], 0.0) is None:
        return []
    first, last = samples[0], samples[-1]
    steps = last.step - first.step
    text = f"worker processes: from {first.children} to {last.children} in {steps} steps"
    rate = (last.children_bytes - first.children_bytes) / steps
    if UNKNOWN in (first.children_bytes, last.children_bytes) or rate <= 0:
        return [Growth(GrowthKind.HOST, text, 0.0)]
    return [Growth(GrowthKind.HOST, f"{text}, {_size(rate)} a step", rate)]


def _size(rate: float) -> str:
    return format_bytes(round(rate))


@dataclass(frozen=True, slots=True)
class HostGrowth:
    """By how much host memory grew."""

    rate: float
    """Bytes a step."""
    steps: int
    """In how many steps that was seen."""
    made: int
    """How many steps there were in all."""

    def fits(self, count: int, nbytes: int) -> bool:
        """Tell whether so many things were left by all of the steps, or by those that count."""
        low = self.rate * self.steps * (1 - _TOLERANCE)
        return count >= self.steps and low <= nbytes <= self.rate * self.made * (1 + _TOLERANCE)

    def is_multiple(self, count: int, size: int) -> bool:
        """Tell whether a step left one thing of a size, or a few: there may be older ones."""
        several = round(self.rate / size) if size else 0
        if not 1 <= several <= _MOST_A_STEP or count < several * self.steps:
            return False
        return abs(several * size - self.rate) <= _TOLERANCE * self.rate


def growing_arrays(grown: HostGrowth) -> tuple[str, str] | None:
    """Return what arrays may have grown, and the path that holds one; None where none fit.

    An array does not tell when it was made. So they have to account for the growth: together as
    what all steps made, by their size as what one step makes, or one by itself that grew.
    """
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
    alone = (group for size, group in sizes.items() if abs(size - whole) <= _OF_ONE * whole)
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
    """Return the shortest path; nothing where none is seen, as in a dict of arrays alone."""
    paths = reference_paths([array], skip=skip)[0]
    return next((str(each) for each in paths if each.references[0].kind != "unknown"), "")
