"""Samples of a loop, step by step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from tensorlens.frameworks.base import StepFigures, Steps
from tensorlens.leaks.growth.growth_test import WatchedSteps
from tensorlens.leaks.host import HostSample


@dataclass(frozen=True, slots=True)
class LoopSamples:
    """Samples of a loop.

    In a long loop several steps are looked at as one: a stretch. Everything is numbered by them.
    """

    steps: Steps
    figures: tuple[StepFigures, ...]
    """Before the first stretch, and after each one."""
    made: int
    """How many steps ended, the warm-up included."""
    warmup_steps: int
    """How many of them are warm-up."""
    stride: int = 1
    """How many steps a stretch has."""
    host: tuple[HostSample, ...] = ()
    host_now: Callable[[], HostSample] | None = None
    """Takes one more sample."""
    is_collector_off: bool = False
    """Whether no step after the warm-up ended with a collector that runs, or has been run."""
    is_frozen: bool = False
    """Whether objects were frozen (``gc.freeze()``) after the warm-up: none is collected."""

    @property
    def uncollected(self) -> bool:
        """Whether cycles are never collected."""
        return self.is_collector_off or self.is_frozen

    @property
    def count(self) -> int:
        """How many stretches were watched, the warm-up included."""
        return len(self.figures) - 1

    @property
    def warmup(self) -> int:
        """How many stretches have some of the warm-up."""
        return -(-self.warmup_steps // self.stride)

    @property
    def span(self) -> WatchedSteps:
        """Which stretches were watched."""
        return WatchedSteps(self.count, self.warmup, self.stride)

    @property
    def judged(self) -> range:
        """The stretches that are judged."""
        return self.span.judged

    @property
    def lines_kept(self) -> int:
        """How many figures of lines the watch itself keeps for each step."""
        return len(self.figures[-1].lines) // self.stride

    def allocated(self, device: str) -> list[int]:
        """Return the allocated bytes of a device from the end of the warm-up on."""
        return [each.allocated.get(device, 0) for each in self.figures[self.warmup :]]

    def reserved(self, device: str) -> list[int]:
        """Return the reserved bytes of a device from the end of the warm-up on."""
        return [each.reserved.get(device, 0) for each in self.figures[self.warmup :]]


class Collections:
    """Asks after steps whether cycles are collected, at a few microseconds.

    Args:
        warmup: how many steps at the beginning do not count.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._seen = 0
        """The last step that it was told of."""
        self._last = 0
        """The last step that ended with a collector that runs, or that somebody ran."""
        self._runs = _runs()
        # to count them takes the longer the more there are
        self._frozen = gc.get_freeze_count()

    def step_ended(self, step: int) -> None:
        """Say that a step has ended, and how many have by now."""
        runs = _runs()
        if runs != self._runs or (gc.isenabled() and gc.get_threshold()[0] > 0):
            self._last = step
        self._runs = runs
        if self._seen < self._warmup:
            self._frozen = gc.get_freeze_count()
        self._seen = step

    @property
    def is_off(self) -> bool:
        """Whether nothing was collected after the warm-up, nor will be."""
        return self._last <= self._warmup

    @property
    def is_frozen(self) -> bool:
        """Whether objects were frozen after the warm-up."""
        return gc.get_freeze_count() > self._frozen

    def resume(self) -> None:
        """Say that collections up to now were not the program's."""
        self._runs = _runs()


def _runs() -> int:
    """Return how many times the oldest generation was collected."""
    return int(gc.get_stats()[-1]["collections"])
