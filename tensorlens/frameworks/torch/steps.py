"""What torch has allocated after each step of a loop, and which blocks of which step are left."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from tensorlens.frameworks.base import Left, StepFigures
from tensorlens.frameworks.survivors import Holdings
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.accelerators import device_counter, used_devices
from tensorlens.frameworks.torch.census.watching import watch
from tensorlens.frameworks.torch.native.living import LivingBlocks
from tensorlens.records.tensors import SourceLine

_lock = threading.Lock()
_era = 0


class TorchSteps:
    """Follows a loop from its making until it is closed; costs nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """

    def __init__(self) -> None:
        self._unwatch = watch()
        counter = cpu.cpu_counter()
        self._counter = counter
        self._allocator = counter.allocator if isinstance(counter, cpu.CpuCounter) else None
        self._blocks = LivingBlocks(self._allocator) if self._allocator is not None else None
        self._lines: dict[int, SourceLine | None] = {-1: None}
        self._begun: list[int] = []
        """The eras in which this loop's steps began: several loops may be followed at once."""

    def begin(self) -> None:
        """Say that the next step begins: blocks from now on are of it; the first one is 0."""
        global _era
        with _lock:
            _era += 1
            self._begun.append(_era)
            if self._blocks is not None:
                self._blocks.set_era(_era)

    def figures(self) -> StepFigures:
        """Return what is allocated now."""
        allocated: dict[str, int] = {}
        reserved: dict[str, int] = {}
        figures = self._counter.reader()()
        if self._allocator is not None:
            allocated["cpu"] = figures[0]
        reserved["cpu"] = figures[2]
        for device in used_devices():
            figures = device_counter(device).reader()()
            allocated[device], reserved[device] = figures[0], figures[2]
        lines: dict[int, tuple[int, int]] = {}
        if self._blocks is not None:
            totals = self._blocks.totals()
            lines = {
                birth: (blocks, nbytes)
                for birth, blocks, nbytes in zip(
                    totals.birth, totals.blocks, totals.bytes, strict=True
                )
            }
        return StepFigures(allocated, reserved, lines)

    def left(self, since: int) -> Left | None:
        """Return the blocks of the steps from ``since`` on that live; None if nobody counts."""
        if self._blocks is None:
            return None
        living = self._blocks.living(self._begun[since])
        steps = array("i", (bisect_right(self._begun, era) - 1 for era in living.era))
        return Left(living.address, living.size, living.birth, steps)

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        if birth not in self._lines and self._allocator is not None:
            self._lines[birth] = SourceLine(*self._allocator.birth_line(birth))
        return self._lines.get(birth)

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Look once for what keeps the blocks at these addresses alive."""
        from tensorlens.frameworks.torch.leaks import holdings

        return holdings.Holdings(addresses)

    def close(self) -> None:
        """Follow no longer."""
        self._unwatch()
