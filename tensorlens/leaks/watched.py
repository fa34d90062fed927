"""What was seen of a loop, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorlens.frameworks.base import StepFigures, Steps
from tensorlens.leaks.host import HostSample
from tensorlens.leaks.steady import Span


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of a loop."""

    steps: Steps
    figures: tuple[StepFigures, ...]
    """Before the first step, and after each one."""
    warmup: int
    host: tuple[HostSample, ...] = ()
    host_now: Callable[[], HostSample] | None = None
    """Takes one more sample."""

    @property
    def count(self) -> int:
        """How many steps were watched, the warm-up included."""
        return len(self.figures) - 1

    @property
    def span(self) -> Span:
        """Which steps were watched."""
        return Span(self.count, self.warmup)

    @property
    def judged(self) -> range:
        """The steps that are judged."""
        return self.span.judged
