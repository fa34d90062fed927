"""Host memory after each step of a loop, and the blocks that each step left."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from tensorlens.frameworks.base import Counter, LeftBlocks, StepFigures
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.counters import forced_source
from tensorlens.frameworks.survivors import GrowingGraph
from tensorlens.interpreter import reentrant_lock
from tensorlens.records.tensors import SourceLine

_lock = reentrant_lock()
_era = 0


class HostSteps:
    """Follows a loop on the host; a framework adds what it knows of its devices.

    Args:
        counter: of host memory.
        allocator: that counts exactly; None where the counter is a fallback.
        reason: why it is one; None where it was asked for.
    """

    def __init__(
        self, counter: Counter, allocator: NativeAllocator | None, reason: str | None
    ) -> None:
        self._counter = counter
        self._allocator = allocator
        self._reason = reason
        self._lines: dict[int, SourceLine | None] = {-1: None}
        self._begun: list[int] = []
        """The eras in which this loop's steps began: several loops may be followed at once."""
        self._stride = 1

    def begin(self) -> None:
        """Say that the next step begins: blocks from now on are of it; the first one is 0."""
        global _era
        with _lock:
            _era += 1
            self._begun.append(_era)
            self._set_era(_era)

    def merge(self) -> None:
        """Count each two steps as one from now on, those before too."""
        with _lock:
            del self._begun[1::2]
        self._stride *= 2

    def left(self, since: int) -> LeftBlocks | None:
        """Return the blocks of the steps from ``since`` on that live; None if nobody counts."""
        left = self._living(self._begun[since])
        if left is not None:
            eras = left.step
            for row, era in enumerate(eras):
                eras[row] = bisect_right(self._begun, era) - 1
        return left

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        if birth not in self._lines:
            found = self._line(birth)
            if found is None:
                return None
            self._lines[birth] = found
        return self._lines[birth]

    def line_at(self, address: int) -> SourceLine | None:
        """Return the line that allocated the block at an address in the steps, if known."""
        left = self.left(0)
        if left is None or not address or address not in left.address:
            return None
        return self.line(left.birth[left.address.index(address)])

    def device(self, birth: int) -> str:
        """Return the device of the blocks with a number in the figures."""
        return "cpu"

    def notes(self) -> list[str]:
        """Return lines for the report on what could not be followed."""
        if self._allocator is not None:
            return []
        reason = self._reason or f"TENSORLENS_COUNTER asks for {forced_source()}"
        return [f"tensors on cpu are not followed: {reason}"]

    def growing_graph(self, made: int) -> GrowingGraph | None:
        """Return the live tensor whose graph grew most: without autograd there is none."""
        return None

    def _set_era(self, era: int) -> None:
        if self._allocator is not None:
            self._allocator.set_era(era)

    def _living(self, since: int) -> LeftBlocks | None:
        """Return the blocks of an era or a later one that live, with their eras as steps."""
        if self._allocator is None:
            return None
        found = self._allocator.living(since)
        return LeftBlocks(found.address, found.size, found.birth, found.era, found.size[:])

    def _line(self, birth: int) -> SourceLine | None:
        if self._allocator is None:
            return None
        return SourceLine(*self._allocator.birth_line(birth))

    def _figures(self, devices: Mapping[str, Counter]) -> StepFigures:
        """Return what is allocated now, on the host by line and on devices in sum."""
        now = self._counter.reader()()
        allocated = {"cpu": now[0]} if self._allocator is not None else {}
        reserved = {"cpu": now[2]}
        for name, counter in devices.items():
            now = counter.reader()()
            allocated[name], reserved[name] = now[0], now[2]
        lines: dict[int, tuple[int, int]] = {}
        if self._allocator is not None:
            totals = self._allocator.totals()
            lines = {birth: (blocks, nbytes) for birth, blocks, nbytes in totals}
        return StepFigures(allocated, reserved, lines)
