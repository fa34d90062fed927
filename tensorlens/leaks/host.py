"""Host memory that grows and holds no tensors: sampled while a loop runs, told apart at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Protocol

from tensorlens.frameworks.base import UNKNOWN, Reader
from tensorlens.frameworks.host.counters import HeapCounter, ResidentCounter, child_processes
from tensorlens.leaks.host_arrays import HostGrowth
from tensorlens.leaks.report import Growth, GrowthKind
from tensorlens.units import format_bytes

_FEWEST = 4
"""Samples without which nothing is said."""
_MOST = 64
_FIRST, _CHEAP = 8, 0.0005
"""The first ones are all taken, where each takes no more than some seconds: steps may be short;"""
_SHARE_OF_FIRST, _SHARE = 20, 1000
"""else when as many times its cost has gone by since the last: of the first ones, of others."""
_MOST_SPACED = 32
"""Samples that are compared with one another at most."""
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
_OF_A_LINE = 5
"""Python objects that a line's figures are made of."""


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


class Arrays(Protocol):
    """Finds the NumPy arrays that may be what grew."""

    def __call__(self, grown: HostGrowth) -> tuple[str, str] | None:
        """Return what they are and the path that holds them; None where there are none."""
        ...


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
        self._pinned = pinned
        self._clock = clock
        self._heap, self._counts_tensors = _reader()
        self._samples: list[HostSample] = []
        self._last = -float("inf")
        self._cost = 0.0
        self._every = 1

    def step_ended(self, step: int, tensors: int) -> None:
        """Take a sample unless the last one is too near.

        Args:
            step: how many steps have ended.
            tensors: bytes that the framework's allocator of host memory has handed out.
        """
        is_first = len(self._samples) < _FIRST
        share = _SHARE_OF_FIRST if is_first else _SHARE
        is_cheap = is_first and self._cost < _CHEAP
        if is_cheap or self._clock() - self._last >= share * self._cost:
            if step % self._every == 0:
                self._take(step, tensors)

    def samples(self, step: int, tensors: int) -> tuple[HostSample, ...]:
        """Return all samples, with one of now."""
        self._take(step, tensors)
        return tuple(self._samples)

    def now(self, step: int, tensors: int) -> HostSample:
        """Return a sample of now, which does not count among the others."""
        heap = self._heap()[0]
        if heap != UNKNOWN and self._counts_tensors:
            heap -= max(tensors, 0)
        children, nbytes = child_processes()
        return HostSample(
            step=step,
            heap=heap,
            objects=sys.getallocatedblocks(),
            pinned=UNKNOWN if self._pinned is None else self._pinned(),
            children=children,
            children_bytes=nbytes,
        )

    def _take(self, step: int, tensors: int) -> None:
        begin = self._clock()
        sample = self.now(step, tensors)
        if self._samples and self._samples[-1].step == step:
            self._samples.pop()
        self._samples.append(sample)
        if len(self._samples) > _MOST:
            del self._samples[1::2]
            self._every *= 2
        self._last = self._clock()
        cost = self._last - begin
        # another thread may have had its turn
        self._cost = min(cost, 2 * self._cost) if self._cost else cost


@cache
def _reader() -> tuple[Reader, bool]:
    """Return what reads the heap, and whether torch's tensors are in it."""
    try:
        return HeapCounter().reader(), True
    except OSError:
        return ResidentCounter().reader(), False


def host_growth(
    samples: Sequence[HostSample],
    warmup: int,
    *,
    tensors_per_step: float = 0.0,
    nodes_per_step: float = 0.0,
    lines: int = 0,
    arrays: Arrays | None = None,
    collected: Callable[[], HostSample | None] | None = None,
) -> list[Growth]:
    """Return what of the host's memory grows steadily although no tensors are in it.

    Args:
        samples: in order.
        warmup: how many steps at the beginning do not count.
        tensors_per_step: how many tensors stay behind, each with something of its own in the heap.
        nodes_per_step: how many nodes of autograd's graph these keep.
        lines: of how many lines the watch itself keeps figures of each step.
        arrays: is asked only where the heap grows.
        collected: runs the collector and takes a sample; the same holds for it.
    """
    counted = _spaced([each for each in samples if each.step >= warmup])
    found = [_children(counted), _pinned(counted)]
    floor = _SMALLEST + _OF_A_TENSOR * tensors_per_step
    rate = steady_rate([(each.step, each.heap) for each in counted], floor)
    points = [(each.step, each.objects) for each in counted]
    own = _OF_A_LINE * lines
    objects = steady_rate(points, _FEWEST_OBJECTS + own)
    if rate is not None:
        steps = counted[-1].step - counted[0].step
        freed = _freed(counted[-1], collected)
        if freed >= _FREED * rate:
            found.append(_of_garbage(min(freed, rate)))
            # what the last step left is still in use
            floor, rate = max(floor, _FREED * rate), rate - min(freed, rate)
        if rate >= floor:
            known = None if arrays is None else arrays(HostGrowth(rate, steps, counted[-1].step))
            found.append(_of_heap(rate, objects, known, nodes_per_step))
    elif objects is not None:
        found.append(_of_objects(objects - own))
    return [each for each in found if each is not None]


def _spaced(samples: list[HostSample]) -> list[HostSample]:
    """Return samples without those too near to others, as the first ones of a long loop are.

    Noise of a step or two is large beside what a step leaves behind.
    """
    if len(samples) < _FEWEST:
        return samples
    least = (samples[-1].step - samples[0].step) / _MOST_SPACED
    found = samples[-1:]
    for each in reversed(samples[:-1]):
        if found[-1].step - each.step >= least:
            found.append(each)
    return found[::-1] if len(found) >= _FEWEST else samples


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
    rate: float, objects: float | None, arrays: tuple[str, str] | None, nodes: float
) -> Growth:
    text = f"host memory without tensors grew {_size(rate)} a step: "
    if arrays is not None:
        what, path = arrays
        return Growth(GrowthKind.HOST, f"{text}NumPy arrays, {what}", rate, path)
    if objects is not None:
        return Growth(
            GrowthKind.HOST, f"{text}with about {objects:,.0f} Python objects a step", rate
        )
    graph = f"{nodes:,.0f} autograd nodes of what stays behind"
    if 0 < rate <= _OF_A_NODE * nodes:
        text += f"probably the {graph}, {_size(rate / nodes)} each"
        return Growth(GrowthKind.GRAPH, text, rate)
    text += "native libraries, or large bytes/str objects"
    return Growth(GrowthKind.HOST, f"{text}; in part {graph}" if nodes >= 1 else text, rate)


def _freed(last: HostSample, collected: Callable[[], HostSample | None] | None) -> float:
    """Return how many bytes of each step the collector frees."""
    after = None if collected is None else collected()
    return 0.0 if after is None else (last.heap - after.heap) / max(1, last.step)


def _of_garbage(rate: float) -> Growth:
    text = f"host memory without tensors grew {_size(rate)} a step: it waited for the collector"
    return Growth(GrowthKind.GARBAGE, text, rate)


def _of_objects(objects: float) -> Growth:
    text = f"about {objects:,.0f} Python objects a step stay behind, which hold no tensors"
    return Growth(GrowthKind.HOST, text, 0.0)


def _pinned(samples: Sequence[HostSample]) -> Growth | None:
    rate = steady_rate([(each.step, each.pinned) for each in samples], _SMALLEST)
    if rate is None:
        return None
    return Growth(
        GrowthKind.HOST, f"page-locked (pinned) host memory grew {_size(rate)} a step", rate
    )


def _children(samples: Sequence[HostSample]) -> Growth | None:
    rate = steady_rate([(each.step, each.children) for each in samples], 0.0)
    if rate is None:
        return None
    first, last = samples[0], samples[-1]
    steps = max(1, last.step - first.step)
    nbytes = (last.children_bytes - first.children_bytes) / steps
    text = f"worker processes: from {first.children} to {last.children}"
    if UNKNOWN in (first.children_bytes, last.children_bytes) or nbytes <= 0:
        return Growth(GrowthKind.HOST, f"{text} in {steps} steps", 0.0)
    return Growth(GrowthKind.HOST, f"{text} in {steps} steps, {_size(nbytes)} a step", nbytes)


def _size(rate: float) -> str:
    return format_bytes(round(rate))
