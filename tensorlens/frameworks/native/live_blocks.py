"""The blocks that a counting allocator has handed out, with the step they were made in."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tensorlens.frameworks.native.allocator import NativeAllocator

_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_view = ctypes.PYFUNCTYPE(ctypes.py_object, _Address, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Living:
    """Blocks in columns."""

    address: array[int]
    size: array[int]
    birth: array[int]
    """Number of the line that made the block, -1 unknown."""
    era: array[int]
    """What :meth:`LivingBlocks.set_era` had set last when it was made."""

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

    def living(self, since: int = 0) -> Living:
        """Return all blocks that live, of the era ``since`` or later.

        Raises:
            MemoryError: there is none for the list.
        """
        library = self._library
        handle = library.tl_living(since)
        if handle is None:
            raise MemoryError
        try:
            return Living(*_columns(library.tl_living_look, handle, "Qqii", Living))
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
