"""Host memory after each step of a loop, and the blocks that each step left."""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from tensorlens import locks
from tensorlens.frameworks.base import Counter, LeftBlocks, StepFigures
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.records.tensors import SourceLine

_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_view = ctypes.PYFUNCTYPE(ctypes.py_object, _Address, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks in columns."""

    address: array[int]
    size: array[int]
    birth: array[int]
    """Number of the line that made the block, -1 unknown."""
    era: array[int]
    """Era of its allocation, as :meth:`LivingBlocks.set_era` set it."""

    @property
    def taken(self) -> array[int]:
        """Bytes that figures count for it: its own."""
        return self.size


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of blocks by the line that made them."""

    birth: array[int]
    blocks: array[int]
    bytes: array[int]


class LivingBlocks:
    """Looks at the blocks of the counting allocator."""

    def __init__(self, allocator: NativeAllocator) -> None:
        self._library = library = allocator.library
        signatures: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
            "tl_set_era": (None, (ctypes.c_int32,)),
            "tl_living": (_Address, (ctypes.c_int32,)),
            "tl_living_look": (_Number, (_Address, _Address)),
            "tl_living_release": (None, (_Address,)),
            "tl_totals": (_Address, ()),
            "tl_totals_look": (_Number, (_Address, _Address)),
            "tl_totals_release": (None, (_Address,)),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def set_era(self, era: int) -> None:
        """Say which step it is: blocks made from now on keep the number (at least 0)."""
        self._library.tl_set_era(era)

    def living(self, since: int = 0) -> LiveBlocks:
        """Return all blocks that live, of the era ``since`` or later.

        Raises:
            MemoryError: there is none for the list.
        """
        library = self._library
        handle = library.tl_living(since)
        if handle is None:
            raise MemoryError
        try:
            return LiveBlocks(*_columns(library.tl_living_look, handle, "Qqii", LiveBlocks))
        finally:
            library.tl_living_release(handle)

    def totals(self) -> Totals:
        """Return how many blocks and bytes of each line live.

        Raises:
            MemoryError: there is none for the list.
        """
        library = self._library
        handle = library.tl_totals()
        if handle is None:
            raise MemoryError
        try:
            return Totals(*_columns(library.tl_totals_look, handle, "iqq", Totals))
        finally:
            library.tl_totals_release(handle)


def _columns(look: Any, handle: int, codes: str, kind: type) -> list[array[int]]:
    starts = (_Address * len(codes))()
    count = look(handle, ctypes.addressof(starts))
    columns = []
    for code, start, _ in zip(codes, starts, fields(kind), strict=True):
        column = array(code)
        if count:
            column.frombytes(_view(start, count * column.itemsize, 0x100))
        columns.append(column)
    return columns


_lock = locks.reentrant()
_era = 0


class Blocks(Protocol):
    """Blocks that live, in columns."""

    @property
    def address(self) -> array[int]:
        """Where each begins."""

    @property
    def size(self) -> array[int]:
        """Bytes."""

    @property
    def birth(self) -> array[int]:
        """Number of the line that made it."""

    @property
    def era(self) -> array[int]:
        """Era of its allocation."""

    @property
    def taken(self) -> array[int]:
        """Bytes that figures count for it."""


class HostSteps:
    """Follows a loop on the host; a framework adds what it knows of its devices.

    Args:
        counter: of host memory.
        allocator: that counts exactly; None where the counter is a fallback.
    """

    def __init__(self, counter: Counter, allocator: NativeAllocator | None) -> None:
        self._counter = counter
        self._allocator = allocator
        self._blocks = LivingBlocks(allocator) if allocator is not None else None
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
        parts = self._living(self._begun[since])
        if not parts:
            return None
        left = LeftBlocks(array("Q"), array("q"), array("i"), array("i"), array("q"))
        for part in parts:
            left.address.extend(part.address)
            left.size.extend(part.size)
            left.birth.extend(part.birth)
            left.taken.extend(part.taken)
            left.step.extend(bisect_right(self._begun, era) - 1 for era in part.era)
        return left

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        if birth not in self._lines:
            found = self._line(birth)
            if found is None:
                return None
            self._lines[birth] = found
        return self._lines[birth]

    def device(self, birth: int) -> str:
        """Return the device of the blocks with a number in the figures."""
        return "cpu"

    def _set_era(self, era: int) -> None:
        if self._blocks is not None:
            self._blocks.set_era(era)

    def _living(self, era: int) -> list[Blocks]:
        """Return the blocks of an era or a later one that live, in parts."""
        return [] if self._blocks is None else [self._blocks.living(era)]

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
        if self._blocks is not None:
            totals = self._blocks.totals()
            columns = zip(totals.birth, totals.blocks, totals.bytes, strict=True)
            lines = {birth: (blocks, nbytes) for birth, blocks, nbytes in columns}
        return StepFigures(allocated, reserved, lines)
