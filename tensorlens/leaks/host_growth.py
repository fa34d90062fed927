"""Growth of host memory without tensors, and its explanation.

A NumPy array does not tell when it was made. So arrays are named only if their bytes match the
growth: a group that of all steps, one or a few of a size that of one step, or a single array that
of all steps.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.heap import live_objects
from tensorlens.heap.paths import reference_paths
from tensorlens.heap.untracked_arrays import OwnedArray, owned_arrays
from tensorlens.leaks.graph_growth import GraphGrowth
from tensorlens.leaks.report import Growth, GrowthKind, Leak
from tensorlens.leaks.watched_loop import HostSample, WatchedLoop
from tensorlens.units import format_bytes

_MIN_SAMPLES = 4
"""Samples below which no rate is given."""
_MIN_RATE = 4096
"""Bytes a step below which growth of the heap is noise."""
_TENSOR_BYTES = 4096
"""Bytes of the C heap that a tensor which is left behind may take beside its storage."""
_MIN_OBJECTS = 1000
"""Python objects a step below which they are noise: records of a log, and the watch's own."""
_LINE_OBJECTS = 5
"""Python objects that a line's figures are made of."""
_GARBAGE_FRACTION = 0.25
"""Fraction of the growth that the collector must have freed for it to be called garbage."""
_MIN_NODE_BYTES, _MAX_NODE_BYTES = 128, 2048
"""Bytes of the C heap that a node of autograd's graph takes, with its notes on tensors."""
_TOLERANCE = 0.08
"""Fraction by which sizes may miss the growth: the C heap rounds up, large sizes to pages."""
_TOLERANCE_OF_ONE = 0.02
"""The same for one array alone, which may be of any size."""
_MAX_PER_STEP = 16
"""Arrays of one size that one step may leave."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """Growth of the heap a step; None if it does not rise all the time."""

    floor: float
    """Bytes a step below which growth of the C heap is noise, or the tensors' own."""
    heap: float | None
    """Bytes of the C heap."""
    objects: float | None
    """Python objects."""


def host_growth(
    watched: WatchedLoop,
    leaks: Sequence[Leak],
    graph: GraphGrowth | None,
    *,
    counts_tensors: bool,
) -> list[Growth]:
    """Return the host memory that grows steadily although no tensors are in it.

    Args:
        watched: the samples.
        leaks: tensors that stay behind, each of which takes some of the heap.
        graph: the graph that gets deeper.
        counts_tensors: whether tensors have a counter of their own; else they may be what grows.
    """
    samples = [each for each in watched.host if each.step >= watched.span.warmup_steps]
    found = [*worker_growth(samples), *pinned_growth(samples)]
    lines = sum(len(each.figures[-1].lines) for each in watched.parts.values())
    tensors = sum(leak.tensors_per_step for leak in leaks)
    rates = host_rates(samples, tensors, lines // watched.span.stride)
    rate = rates.heap
    if rate is None:
        return found if rates.objects is None else [*found, objects_growth(rates.objects)]
    least = rates.floor
    if watched.span.is_collected:
        gc.collect()
        made = samples[-1].step - watched.host[0].step + 1
        now = watched.steps.host_sample(watched.span.made, watched.steps.allocated())
        garbage = min(rate, (samples[-1].heap - now.heap) / made)
        if garbage >= _GARBAGE_FRACTION * rate:
            text = f"{_grew(garbage, counts_tensors)}: it waited for the collector"
            found.append(Growth(GrowthKind.GARBAGE, text, garbage))
            # memory of the last step is still in use
            least, rate = max(least, _GARBAGE_FRACTION * rate), rate - garbage
    if rate >= least:
        steps = samples[-1].step - samples[0].step
        arrays = growing_arrays(HostGrowth(rate, steps, samples[-1].step))
        nodes = sum(leak.nodes_per_step for leak in leaks)
        found.append(heap_growth(rate, rates.objects, arrays, nodes, graph, counts_tensors))
    return found


def host_rates(
    samples: Sequence[HostSample], tensors_per_step: float = 0.0, lines: int = 0
) -> HostRates:
    """Return the growth of the heap a step.

    Args:
        samples: in order, those of the warm-up left out.
        tensors_per_step: tensors that stay behind, each with something of its own in the heap.
        lines: number of lines of which the watch keeps figures of each step.
    """
    floor = _MIN_RATE + _TENSOR_BYTES * tensors_per_step
    own = _LINE_OBJECTS * lines
    heap = steady_rate([(each.step, each.heap) for each in samples], floor)
    objects = steady_rate([(each.step, each.objects) for each in samples], _MIN_OBJECTS + own)
    return HostRates(floor, heap, None if objects is None else objects - own)


def steady_rate(points: Sequence[tuple[int, int]], floor: float) -> float | None:
    """Return by how much a level rises each step; None unless it rises all the time.

    A level that rises at first and then stays, or in a jump or two, or that comes down again, does
    not grow.

    Args:
        points: steps, in order, and the level after each.
        floor: what a step has to add at least.
    """
    if len(points) < _MIN_SAMPLES or any(level == UNKNOWN for _, level in points):
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


def heap_growth(
    rate: float,
    objects: float | None = None,
    arrays: tuple[str, str] | None = None,
    nodes: float = 0.0,
    graph: GraphGrowth | None = None,
    counts_tensors: bool = True,
) -> Growth:
    """Explain growth of the C heap by the first of these that fits.

    Args:
        rate: bytes a step.
        objects: Python objects a step.
        arrays: NumPy arrays, as a text, and the path to one.
        nodes: nodes of autograd's graph a step, of what stays behind.
        graph: the graph that gets deeper.
        counts_tensors: whether tensors have a counter of their own.
    """
    text = f"{_grew(rate, counts_tensors)}: {'' if counts_tensors else 'tensors, '}"
    if arrays is not None:
        what, path = arrays
        return Growth(GrowthKind.HOST, f"{text}NumPy arrays, {what}", rate, path)
    if objects is not None:
        text += f"with about {objects:,.0f} Python objects a step"
        return Growth(GrowthKind.HOST, text, rate)
    of_leaks = f"{nodes:,.0f} autograd nodes of what stays behind"
    if 0 < rate <= _MAX_NODE_BYTES * nodes:
        text += f"probably the {of_leaks}, {_size(rate / nodes)} each"
        return Growth(GrowthKind.GRAPH, text, rate)
    if graph is not None and _MIN_NODE_BYTES <= rate / graph.nodes_per_step <= _MAX_NODE_BYTES:
        text += f"probably the autograd graph of {graph.name}, which {graph.rate}, "
        text += f"{_size(rate / graph.nodes_per_step)} each; {graph.advice}"
        return Growth(GrowthKind.GRAPH, text, rate, graph.path)
    text += "native libraries, or large bytes/str objects"
    text += f"; in part {of_leaks}" if nodes >= 1 else ""
    return Growth(GrowthKind.HOST, text, rate)


def objects_growth(rate: float) -> Growth:
    """Return Python objects that stay behind in a heap that does not grow."""
    text = f"about {rate:,.0f} Python objects a step stay behind, which hold no tensors"
    return Growth(GrowthKind.HOST, text, 0.0)


def pinned_growth(samples: Sequence[HostSample]) -> list[Growth]:
    """Return page-locked memory that grows."""
    rate = steady_rate([(each.step, each.pinned) for each in samples], _MIN_RATE)
    if rate is None:
        return []
    text = f"page-locked (pinned) host memory grew {_size(rate)} a step"
    return [Growth(GrowthKind.HOST, text, rate)]


def worker_growth(samples: Sequence[HostSample]) -> list[Growth]:
    """Return the growth of the number of worker processes, with their bytes."""
    if steady_rate([(each.step, each.children) for each in samples], 0.0) is None:
        return []
    first, last = samples[0], samples[-1]
    steps = last.step - first.step
    text = f"worker processes: from {first.children} to {last.children} in {steps} steps"
    rate = (last.children_bytes - first.children_bytes) / steps
    if UNKNOWN in (first.children_bytes, last.children_bytes) or rate <= 0:
        return [Growth(GrowthKind.HOST, text, 0.0)]
    return [Growth(GrowthKind.HOST, f"{text}, {_size(rate)} a step", rate)]


def _grew(rate: float, counts_tensors: bool) -> str:
    memory = "host memory without tensors" if counts_tensors else "host memory"
    return f"{memory} grew {_size(rate)} a step"


def _size(rate: float) -> str:
    return format_bytes(round(rate))


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
        """Return whether arrays match the growth of ``steps`` steps, up to that of ``made``."""
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
