"""Samples of a loop, step by step."""

from __future__ import annotations

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
