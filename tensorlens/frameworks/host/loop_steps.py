"""Host memory after each step of a loop, and the blocks that each step left."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from tensorlens.frameworks.base import Counter, StepFigures
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.counters import forced_source
from tensorlens.frameworks.retention import GrowingGraph, Holdings, LeftBlock
from tensorlens.interpreter import reentrant_lock
from tensorlens.records.tensors import SourceLine

_lock = reentrant_lock()
_era = 0


class Steps:
    """Follows the steps of a loop in one framework, whose subclass adds the framework's devices.

    Args:
        counter: counter of host memory.
        allocator: allocator that counts exactly; None if the counter is a fallback.
        reason: why the counter is a fallback; None if it was asked for.
    """

    def __init__(
        self, counter: Counter, allocator: NativeAllocator | None, reason: str | None
    ) -> None:
        self._counter = counter
        self._allocator = allocator
        self._reason = reason
        self._begun: list[int] = []
        """Eras in which this loop's steps began: several loops may be followed at once."""
        self._stride = 1

    def begin(self) -> None:
        """Begin the next step, whose number later blocks get; the first step is 0."""
        global _era
        with _lock:
            _era += 1
            self._begun.append(_era)
            self._set_era(_era)

    def merge(self) -> None:
        """Join each two steps begun so far to one; call it after an even number of them.

        From now on the caller begins half as many steps, which bounds the memory of a long loop.
        """
        with _lock:
            del self._begun[1::2]
        self._stride *= 2

    def figures(self) -> StepFigures:
        """Return the allocated memory."""
        raise NotImplementedError

    def left(self) -> list[LeftBlock] | None:
        """Return the live blocks of all steps; None if nobody counts."""
        living = self._living(self._begun[0])
        if living is None:
            return None
        begun = self._begun
        return [each._replace(step=bisect_right(begun, each.step) - 1) for each in living]

    def line(self, birth: int) -> SourceLine | None:
        """Return the line with a number in the figures, if known."""
        if birth < 0 or self._allocator is None:
            return None
        return SourceLine(*self._allocator.birth_line(birth))

    def line_at(self, address: int) -> SourceLine | None:
        """Return the line that allocated the block at an address in the steps, if known."""
        births = (each.birth for each in self.left() or () if each.address == address)
        return self.line(next(births, -1))

    def device(self, birth: int) -> str:
        """Return the device of the blocks of a line."""
        return "cpu"

    def notes(self) -> list[str]:
        """Return notes for the report on what could not be followed."""
        if self._allocator is not None:
            return []
        reason = self._reason or f"TENSORLENS_COUNTER asks for {forced_source()}"
        return [f"tensors on cpu are not followed: {reason}"]

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Search the heap once for the holders of the blocks at these addresses."""
        raise NotImplementedError

    def growing_graph(self, made: int) -> GrowingGraph | None:
        """Return the live tensor whose autograd graph grew most in ``made`` steps, if one did."""
        return None

    def close(self) -> None:
        """Stop following."""
        raise NotImplementedError

    def _set_era(self, era: int) -> None:
        if self._allocator is not None:
            self._allocator.set_era(era)

    def _living(self, since: int) -> list[LeftBlock] | None:
        """Return the live blocks of an era and later ones, with their eras as steps."""
        if self._allocator is None:
            return None
        found = self._allocator.living(since)
        sizes = found.size
        return [*map(LeftBlock, found.address, sizes, found.birth, found.era, sizes)]

    def _figures(self, devices: Mapping[str, Counter]) -> StepFigures:
        """Return the allocated memory: by line on the host, as sums on devices."""
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
