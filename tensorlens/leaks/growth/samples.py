"""Samples of a watched loop: the figures after each stretch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorlens.frameworks.base import StepFigures
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.leaks.followed_loop import FollowedLoop
from tensorlens.leaks.growth.span import Span
from tensorlens.leaks.host.samples import HostSample


@dataclass(frozen=True, slots=True)
class LoopSamples:
    """Samples of a loop in one framework."""

    span: Span
    figures: tuple[StepFigures, ...]
    """Figures before the first stretch, and after each one."""
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLoop:
    """Samples of a loop in all frameworks."""

    span: Span
    figures: tuple[StepFigures, ...]
    """Sums of all frameworks, before the first stretch and after each one."""
    steps: FollowedLoop
    parts: Mapping[str, LoopSamples]
    """Samples by framework."""
    host: Sequence[HostSample]
    host_now: Callable[[], HostSample]
    """Takes one more sample."""

    def allocated(self, device: str) -> list[int]:
        """Return the allocated bytes of a device from the end of the warm-up on."""
        return [each.allocated.get(device, 0) for each in self.figures[self.span.warmup :]]

    def reserved(self, device: str) -> list[int]:
        """Return the reserved bytes of a device from the end of the warm-up on."""
        return [each.reserved.get(device, 0) for each in self.figures[self.span.warmup :]]
