"""Counting allocators: their figures, blocks, and the lines that allocated these (births)."""

from __future__ import annotations

import atexit
import ctypes
import sys
import sysconfig
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from heapq import nsmallest
from itertools import chain, repeat

from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import NativeUnavailable, Signatures, declare
from tensorlens.records.logs.stacks import LAYERS, NO_MODELS
from tensorlens.user_code import foreign_prefixes

_pointer, _length, _number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_BIRTH_SIGNATURES: Signatures = {
    "tl_birth_line": (_pointer, (_number, _pointer)),
    "tl_prepare_births": (ctypes.c_int, (_pointer, _length) * 3),
    "tl_switch_births": (None, (ctypes.c_int,)),
}
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
"""Functions of native parts that return lists for :func:`listed`."""
_REFUSALS = {
    1: "the frames of this Python version are not known",
    2: "the frames of this Python are not laid out as expected",
    3: "this Python does not tell when code objects end",
}
_UTF_32 = f"utf-32-{sys.byteorder[0]}e"


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks in columns."""

    address: array[int]
    size: array[int]
    birth: array[int]
    """Number of the line that made the block, -1 unknown."""
    era: array[int]
    """Era of the allocation: see :meth:`NativeAllocator.set_era`."""
    node: array[int]
    """Number of the name of the graph node or operation that made it, -1 unknown."""
    function: array[int]
    """Number of the name of the graph function that was running, -1 for none."""

    def at(self, rows: Iterable[int]) -> LiveBlocks:
        """Return the blocks of these rows."""
        rows = [*rows]
        columns = (getattr(self, each.name) for each in fields(self))
        return LiveBlocks(*(array(each.typecode, map(each.__getitem__, rows)) for each in columns))


@dataclass(frozen=True, slots=True)
class Balance:
    """Comparison of the counted blocks with a list of addresses, at one moment; in bytes."""

    allocated: int
    """The sum of all blocks."""
    named: int
    """The sum of the blocks that begin at one of the addresses, each block once."""
    sizes: array[int]
    """For each address the size of its block, -1 where none begins there."""
    unmatched_count: int
    """Number of blocks at none of the addresses, without those in ``of_nodes``."""
    unmatched: list[tuple[int, int, int]]
    """The largest of these, largest first: ``(address, size, birth)``."""
    of_nodes: LiveBlocks
    """Blocks at none of the addresses whose graph node is known."""

    @property
    def unnamed(self) -> int:
        """The sum of the blocks that begin at none of the addresses."""
        return self.allocated - self.named


class BirthLines:
    """Numbered source lines that a native part has seen allocate.

    Args:
        library: a native part that includes ``alloc_sites.hpp``.
    """

    def __init__(self, library: ctypes.PyDLL) -> None:
        self.library = library
        declare(library, _BIRTH_SIGNATURES)
        self._watchers = 0
        self._births_prepared = False
        self._ended = False
        self._lock = reentrant_lock()
        # at its exit the interpreter frees the thread states through which frames are read
        atexit.register(self._end)

    def watch_births(self, on: bool = True) -> None:
        """Note the source line that allocates each block, on every thread, or stop noting it.

        Calls nest: noting stops after as many with False as with True. Blocks keep their births.

        Raises:
            NativeUnavailable: not possible on this Python.
        """
        with self._lock:
            if on:
                self.prepare_births()
            self._watchers = max(0, self._watchers + (1 if on else -1))
            self.library.tl_switch_births(self._watchers > 0 and not self._ended)

    def prepare_births(self) -> None:
        """Make sure that births can be watched.

        Raises:
            NativeUnavailable: not possible on this Python, or at the exit of the program.
        """
        if self._ended:
            raise NativeUnavailable("birth lines are not known: the program is at its exit")
        if self._births_prepared:
            return
        if not _is_plain_cpython():
            raise NativeUnavailable("birth lines are not known: only for release builds of CPython")
        texts = map("\0".join, (foreign_prefixes(), LAYERS, NO_MODELS))
        # one text of 32-bit characters for each list, and its length
        words = ((text.encode(_UTF_32, "surrogatepass"), len(text)) for text in texts)
        refusal = int(self.library.tl_prepare_births(*chain.from_iterable(words)))
        if refusal:
            raise NativeUnavailable(f"birth lines are not known: {_REFUSALS[refusal]}")
        self._births_prepared = True

    def birth_line(self, birth: int) -> tuple[str, int, str]:
        """Return file name, line number and qualified function name of a birth.

        It is the innermost line outside of frameworks, ``tensorlens``, installed packages and the
        standard library, or else the innermost of all.

        Raises:
            LookupError: there is no such birth.
        """
        length = ctypes.c_int64()
        address = self.library.tl_birth_line(birth, ctypes.byref(length))
        if address is None:
            raise LookupError(f"no birth {birth}")
        # a file name may have surrogates in place of bytes that cannot be decoded
        text = ctypes.string_at(address, 4 * length.value).decode(_UTF_32, "surrogatepass")
        # the line number is one character, which may be the separator
        filename, _, rest = text.partition("\0")
        return filename, ord(rest[0]), rest[2:]

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self.library.tl_switch_births(0)


def _is_plain_cpython() -> bool:
    settings = sysconfig.get_config_vars("Py_GIL_DISABLED", "Py_DEBUG", "Py_TRACE_REFS")
    return sys.implementation.name == "cpython" and not any(settings)


class NativeAllocator(BirthLines):
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
        """Return ``(allocated, peak since the last read by anyone, resident set)`` in bytes.

        The resident set is -1 if the system does not report it. Any thread may call it.
        """
        self.allocated: Callable[[], int] = library.tl_allocated
        """Return the bytes handed out now."""
        self.missing: Mapping[str, str] = {}
        if self.read()[2] < 0:
            self.missing = {"reserved": "this system does not tell the resident set"}

    def reader(self) -> Callable[[], tuple[int, int, int]]:
        """Return :attr:`read`."""
        return self.read

    def balance(self, addresses: array[int], limit: int = 100) -> Balance:
        """Compare the table of blocks with addresses, an ``array('Q')``.

        At most ``limit`` of the blocks at none of the addresses are listed.

        Raises:
            MemoryError: no memory for a copy of the table.
        """
        sizes = array("q", bytes(8 * len(addresses)))
        allocated = self.library.tl_sizes(start(addresses), len(addresses), start(sizes))
        # in most cases every block is matched, and the table need not be copied
        found = dict(zip(addresses, sizes, strict=True))
        named = sum(found.values()) + [*found.values()].count(-1)
        if named == allocated:
            nothing = LiveBlocks(array("Q"), array("q"), *(array("i") for _ in range(4)))
            return Balance(allocated, named, sizes, 0, [], nothing)
        blocks = self.living()
        size, starts = blocks.size, blocks.address
        # all figures are taken from this list, so that they belong to one moment
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
        """Set the era (at least 0) that blocks made from now on keep."""
        self.library.tl_set_era(era)

    def living(self, since: int = 0) -> LiveBlocks:
        """Return all live blocks of the era ``since`` or later.

        Raises:
            MemoryError: no memory for the list.
        """
        return LiveBlocks(*listed(self.library, "tl_living", "Qqiiii", since))

    def totals(self) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each line with its live blocks and bytes.

        Raises:
            MemoryError: no memory for the list.
        """
        return zip(*listed(self.library, "tl_totals", "iqq"), strict=True)

    def op_name(self, number: int) -> str | None:
        """Return the name of an operator, a node or a function; None for -1."""
        name = self.library.tl_op_name(number)
        return None if name is None else name.decode("utf-8", "replace")

    def births(self, addresses: array[int]) -> tuple[array[int], array[int]]:
        """Return the numbers of the lines that allocated the blocks at addresses (``array('Q')``).

        The first array has the user's lines: -1 if no block begins there, if births were not
        watched, or if the thread ran no Python code. The second has the lines inside a library's
        model that the user's line calls, -1 for none.
        """
        lines, models = (array("i", bytes(4 * len(addresses))) for _ in range(2))
        self.library.tl_births(start(addresses), len(addresses), start(lines), start(models))
        return lines, models


def listed(library: ctypes.CDLL, name: str, codes: str, *given: int) -> list[array[int]]:
    """Return the columns of a list that a native part builds, and release the list.

    Args:
        library: the native part.
        name: name of the function that builds the list.
        codes: type codes of the columns.
        given: arguments of the function.

    Raises:
        MemoryError: no memory for the list.
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
    """Return a copy of ``count`` numbers at an address."""
    column = array(code)
    if count:
        column.frombytes(_view(address, count * column.itemsize, _READ))
    return column


_READ = 0x100  # PyBUF_READ
_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


def start(numbers: array[int]) -> int:
    """Return the address of an array's first number."""
    return numbers.buffer_info()[0]
