"""What TensorFlow has allocated after each step of a loop, and which blocks of which are left."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from tensorlens.frameworks.base import Left, StepFigures
from tensorlens.frameworks.native.living import LivingBlocks
from tensorlens.frameworks.survivors import Holdings
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.autograph_lines import written
from tensorlens.frameworks.tensorflow.counters import device_counter, used_devices
from tensorlens.frameworks.tensorflow.leaks.tracing import Traces
from tensorlens.frameworks.tensorflow.watching import watch
from tensorlens.records.tensors import SourceLine

_lock = threading.Lock()
_era = 0


class TensorflowSteps:
    """Follows a loop from its making until it is closed; costs next to nothing while a step runs.

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
        self._traces = Traces()
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
        now = self._counter.reader()()
        allocated = {"cpu": now[0]} if self._allocator is not None else {}
        reserved = {"cpu": now[2]}
        for device in used_devices():
            now = device_counter(device).reader()()
            allocated[device], reserved[device] = now[0], now[2]
        lines: dict[int, tuple[int, int]] = {}
        if self._blocks is not None:
            totals = self._blocks.totals()
            columns = zip(totals.birth, totals.blocks, totals.bytes, strict=True)
            lines = {birth: (blocks, nbytes) for birth, blocks, nbytes in columns}
        return StepFigures(allocated, reserved, lines)

    def left(self, since: int) -> Left | None:
        """Return the blocks of the steps from ``since`` on that live; None if nobody counts."""
        if self._blocks is None:
            return None
        found = self._blocks.living(self._begun[since])
        step = array("i", (bisect_right(self._begun, era) - 1 for era in found.era))
        return Left(found.address, found.size, found.birth, step)

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        if birth not in self._lines and self._allocator is not None:
            self._lines[birth] = written(SourceLine(*self._allocator.birth_line(birth)))
        return self._lines.get(birth)

    def device(self, birth: int) -> str:
        """Return the device of the blocks with a number in the figures."""
        return "cpu"

    def notes(self) -> list[str]:
        """Return lines for the report on what could not be followed."""
        notes = self._traces.notes(len(self._begun) - 1)
        used = ", ".join(used_devices())
        if used:
            notes.append(
                f"{used}: only the sums are followed: TensorFlow does not tell of single blocks"
            )
        return notes

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Look once for what keeps the blocks at these addresses alive."""
        from tensorlens.frameworks.tensorflow.leaks.holdings import TensorflowHoldings

        return TensorflowHoldings(addresses)

    def close(self) -> None:
        """Follow no longer."""
        self._unwatch()
