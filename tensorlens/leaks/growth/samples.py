"""Samples of a watched loop: the figures after each stretch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorlens.frameworks.base import StepFigures
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.leaks.followed_loop import FollowedLoop
from tensorlens.leaks.host.samples import HostSample


@dataclass(frozen=True, slots=True)
class Span:
    """Number of steps of a watched loop, and which of them are judged.

    Several steps of a long loop are looked at as one stretch; all numbers of steps elsewhere are
    numbers of stretches, and all rates are per step.
    """

    made: int
    """Number of steps that ended, the warm-up included."""
    warmup_steps: int
    """Number of steps of the warm-up."""
    stride: int = 1
    """Number of steps in a stretch."""
    is_collected: bool = True
    """Whether the collector is on, or has run since the warm-up."""

    @property
    def stretches(self) -> int:
        """Number of stretches, the warm-up included."""
        return self.made // self.stride

    @property
    def warmup(self) -> int:
        """Number of stretches that have steps of the warm-up."""
        return -(-self.warmup_steps // self.stride)

    @property
    def judged(self) -> range:
        """The stretches after the warm-up, without the last, whose blocks may be in use."""
        return range(self.warmup, self.stretches - 1)

    @property
    def before_last(self) -> range:
        """All stretches but the last."""
        return range(self.stretches - 1)

    @property
    def judged_steps(self) -> int:
        """Number of steps that are judged."""
        return len(self.judged) * self.stride

    def words(self, count: int) -> str:
        """Return ``5 steps``, or ``128 stretches of 8 steps``."""
        return f"{count} steps" if self.stride == 1 else f"{count} stretches of {self.stride} steps"


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
