"""Reads a counting allocator: its figures, and the lines that allocated its blocks."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from heapq import nsmallest
from itertools import repeat

from tensorlens.frameworks.host.alloc_sites import AllocSites
from tensorlens.native.build import Signatures, declare

_pointer, _length, _number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_SIGNATURES: Signatures = {
    "tl_make_reader": (ctypes.py_object, ()),
    "tl_allocated": (_length, ()),
    "tl_sizes": (_length, (_pointer, _length, _pointer)),
    "tl_set_era": (None, (_number,)),
    "tl_living": (_pointer, (_number,)),
    "tl_totals": (_pointer, ()),
    "tl_op_name": (ctypes.c_char_p, (_number,)),
    "tl_births": (None, (_pointer, _length, _pointer, _pointer)),
}
LISTS: Signatures = {
    "tl_list_look": (_length, (_pointer, _pointer)),
    "tl_list_release": (None, (_pointer,)),
}
"""Functions of each part with lists for :func:`listed`."""


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks in columns."""

    address: array[int]
    size: array[int]
    birth: array[int]
    """Number of the line that made the block, -1 unknown."""
    era: array[int]
    """Era of its allocation, as :meth:`NativeAllocator.set_era` set it."""
    node: array[int]
    """Number of the name of the graph's node, or of the operation, that made it; -1 unknown."""
    function: array[int]
    """Number of the name of the graph function that was called then, -1 for none."""

    def at(self, rows: Iterable[int]) -> LiveBlocks:
        """Return some of the blocks."""
        rows = [*rows]
        columns = (getattr(self, each.name) for each in fields(self))
        return LiveBlocks(*(array(each.typecode, map(each.__getitem__, rows)) for each in columns))


@dataclass(frozen=True, slots=True)
class Balance:
    """The table of counted blocks against a list of addresses, at one moment; sizes in bytes."""

    allocated: int
    """The sum of all blocks."""
    named: int
    """The sum of the blocks that begin at one of the addresses, each block once."""
    sizes: array[int]
    """For each address the size of its block, -1 where none begins there."""
    unmatched_count: int
    """How many blocks begin at none of the addresses, those of ``of_nodes`` aside."""
    unmatched: list[tuple[int, int, int]]
    """The largest of those, largest first: ``(address, size, birth)``."""
    of_nodes: LiveBlocks
    """Those that a node is known of, which allocated them while births were watched."""

    @property
    def unnamed(self) -> int:
        """The sum of the blocks that begin at none of the addresses."""
        return self.allocated - self.named


class NativeAllocator(AllocSites):
    """Counter of a framework's allocator: exact bytes handed out, on all threads.

    Blocks from before it was installed count once they are adopted. Blocks of zero bytes do not
    exist. Memory of other allocators (NumPy's, shared memory, files) is not counted.

    Args:
        library: the native part that taps it; it includes ``counting.hpp``.
    """

    device = "cpu"
    source: str
    precision = "exact bytes"

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(library)
        declare(library, {**_SIGNATURES, **LISTS})
        self.read: Callable[[], tuple[int, int, int]] = library.tl_make_reader()
        """Gives ``(allocated, peak since the last read by anyone, resident set)`` in bytes.

        The resident set is -1 where the system does not tell. Any thread may call it.
        """
        self.allocated: Callable[[], int] = library.tl_allocated
        """Gives the bytes handed out now."""
        self.missing: Mapping[str, str] = {}
        if self.read()[2] < 0:
            self.missing = {"reserved": "this system does not tell the resident set"}

    def reader(self) -> Callable[[], tuple[int, int, int]]:
        """Return :attr:`read`."""
        return self.read

    def balance(self, addresses: array[int], limit: int = 100) -> Balance:
        """Compare the table of blocks with the addresses, an ``array('Q')``.

        ``limit`` is how many of the blocks at none of them are listed.

        Raises:
            MemoryError: there is none for a copy of the table.
        """
        sizes = array("q", bytes(8 * len(addresses)))
        allocated = self.library.tl_sizes(start(addresses), len(addresses), start(sizes))
        # most often every block has a name: then nothing of the table is copied
        found = dict(zip(addresses, sizes, strict=True))
        named = sum(found.values()) + [*found.values()].count(-1)
        if named == allocated:
            nothing = LiveBlocks(array("Q"), array("q"), *(array("i") for _ in range(4)))
            return Balance(allocated, named, sizes, 0, [], nothing)
        blocks = self.living()
        size, starts = blocks.size, blocks.address
        # all of it is of the moment of the list
        sizes = array("q", map(dict(zip(starts, size, strict=True)).get, addresses, repeat(-1)))
        others = [row for row, address in enumerate(starts) if address not in found]
        allocated, unnamed = sum(size), sum(map(size.__getitem__, others))
        of_nodes = [row for row in others if blocks.node[row] >= 0]
        others = [row for row in others if blocks.node[row] < 0]
        largest = nsmallest(max(0, limit), others, key=lambda row: (-size[row], starts[row]))
        return Balance(
            allocated=allocated,
            named=allocated - unnamed,
            sizes=sizes,
            unmatched_count=len(others),
            unmatched=[(starts[row], size[row], blocks.birth[row]) for row in largest],
            of_nodes=blocks.at(of_nodes),
        )

    def set_era(self, era: int) -> None:
        """Say which step it is: blocks made from now on keep the number (at least 0)."""
        self.library.tl_set_era(era)

    def living(self, since: int = 0) -> LiveBlocks:
        """Return all blocks that live, of the era ``since`` or later.

        Raises:
            MemoryError: there is none for the list.
        """
        return LiveBlocks(*listed(self.library, "tl_living", "Qqiiii", since))

    def totals(self) -> Iterator[tuple[int, int, int]]:
        """Give each line's number, and how many blocks and bytes of it live.

        Raises:
            MemoryError: there is none for the list.
        """
        return zip(*listed(self.library, "tl_totals", "iqq"), strict=True)

    def op_name(self, number: int) -> str | None:
        """Return the name of an operator, a node or a function; None for -1."""
        name = self.library.tl_op_name(number)
        return None if name is None else name.decode("utf-8", "replace")

    def births(self, addresses: array[int]) -> tuple[array[int], array[int]]:
        """Return the numbers of the lines that allocated each block; addresses as ``array('Q')``.

        The first are of the user's lines: -1 where no block begins there, where births were not
        watched, and for blocks made on a thread that ran no Python code. The second are of the
        lines of a library's model that those call, -1 where they call none.
        """
        lines, models = (array("i", bytes(4 * len(addresses))) for _ in range(2))
        self.library.tl_births(start(addresses), len(addresses), start(lines), start(models))
        return lines, models


def listed(library: ctypes.CDLL, name: str, codes: str, *given: int) -> list[array[int]]:
    """Return the columns of a list that a native part makes, which is released.

    Args:
        library: the part.
        name: of the function that makes it.
        codes: types of the columns.
        given: what the function takes.

    Raises:
        MemoryError: there is none for the list.
    """
    handle = getattr(library, name)(*given)
    if handle is None:
        raise MemoryError
    try:
        starts = (ctypes.c_void_p * len(codes))()
        count = library.tl_list_look(handle, starts)
        return list(map(copied, codes, starts, repeat(count)))
    finally:
        library.tl_list_release(handle)


def copied(code: str, address: int | None, count: int) -> array[int]:
    """Return a copy of ``count`` numbers that lie at an address."""
    column = array(code)
    if count:
        column.frombytes(_view(address, count * column.itemsize, _READ))
    return column


_READ = 0x100  # PyBUF_READ
_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


def start(numbers: array[int]) -> int:
    """Return where an array begins in memory."""
    return numbers.buffer_info()[0]
