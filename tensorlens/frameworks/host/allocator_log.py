"""Every allocation and free of a counting allocator while someone records, as columns."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

from tensorlens.frameworks.host.allocator import NativeAllocator, copied
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import Signatures, declare

_Address, _Number, _Held = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
_CODES = "bQqqiiiii"
"""Types of the columns of :class:`Columns`."""
_SIGNATURES: Signatures = {
    "tl_module_call": (None, (_Address,)),
    "tl_hooks": (_Address, ()),
    "tl_hooks_connected": (None, ()),
    "tl_record_begin": (_Held, (_Number,)),
    "tl_record_read": (_Held, (_Held,)),
    "tl_record_look": (None, (_Held, ctypes.c_int, _Address, _Address)),
    "tl_end": (_Number, (_Held,)),
    "tl_is_recording": (ctypes.c_int, ()),
    "tl_name_at_backward": (None, (_Address,)),
    "tl_record_mark": (None, (_Number,)),
    "tl_stack": (_Number, (ctypes.c_int32, _Address, _Address, _Number)),
    "tl_context": (ctypes.c_int, (ctypes.c_int32, _Address)),
    "tl_thread": (ctypes.c_int32, ()),
    "tl_module": (ctypes.c_uint64, (ctypes.c_int32, _Address)),
}
_MOST_FRAMES = 512
"""Of one stack; the native part looks at no more."""


@dataclass(slots=True)
class Columns:
    """Events as the native part numbers things, in the columns of ``records.logs.events``.

    ``birth`` is, for a block that was there before, the number of the line that allocated it;
    ``owner``, for a gradient, the row of what it is the gradient of.
    """

    kind: array[int]
    address: array[int]
    size: array[int]
    time: array[int]
    stack: array[int]
    context: array[int]
    birth: array[int]
    pair: array[int]
    owner: array[int]


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows of a span of the log."""

    rows: Columns
    dropped: int
    """Events before the first row that there was no room for."""
    dropped_peak: Columns
    """Blocks resident at the highest instant among them."""
    unlisted: int
    """Bytes of the row for blocks that there was no memory to list, at the first event or at that
    instant: the larger of both."""
    lost_stacks: int
    """Events whose stack is unknown because there was no more room for stacks."""
    marks: list[tuple[int, int]]
    """Number of each mark, and how many rows there were before it."""


class NativeRecorder:
    """Records spans of what the counting allocator hands out; spans may overlap.

    Args:
        allocator: what is recorded.
    """

    def __init__(self, allocator: NativeAllocator) -> None:
        self.allocator = allocator
        self._library = allocator.library
        declare(self._library, _SIGNATURES)
        self._lock = reentrant_lock()
        self.no_ops: str | None = None
        """Why operators and nodes are not known, once it was tried."""

    def start_ops(self) -> None:
        """Have operators noted from now on, where that is not always so."""

    def stop_ops(self) -> None:
        """Nobody records any more who wants operators."""

    def begin(self, limit: int, ops: bool = True) -> object:
        """Record a span from now on, while births are watched.

        It ends with :meth:`read`, or when nobody refers to it any more, however it came to that.

        Args:
            limit: how many events are kept; the oldest go first.
            ops: note operators and autograd's nodes as well, for all spans that are open.

        Raises:
            NativeUnavailable: stacks cannot be had on this Python.
            MemoryError: there is none for the list of what is there already.
        """
        with self._lock:
            self.allocator.prepare_births()
            if ops:
                self.start_ops()
            span: object = self._library.tl_record_begin(limit)
        if span == 0:
            raise MemoryError
        return span

    def read(self, span: object, end: bool) -> LogRows:
        """Return what the span holds so far; ``end`` closes it.

        Raises:
            MemoryError: there is none for the columns. The span is closed all the same.
        """
        with self._lock:
            try:
                found = self._library.tl_record_read(span)
            finally:
                if end:
                    self._library.tl_end(span)
                    if not self._library.tl_is_recording():
                        self.stop_ops()
        if found == 0:
            raise MemoryError
        rows, marks, dropped, lost_stacks, unlisted = self._look(found, 0)
        peak, *_ = self._look(found, 1)
        return LogRows(rows, dropped, peak, unlisted, lost_stacks, marks)

    def name_at_backward(self, namer: Callable[[], None]) -> None:
        """Have ``namer`` called on the main thread when backward begins.

        All that the forward pass kept is alive then. It is called at the first passes, then ever
        more seldom, and whenever more modules were met. There can be only one, kept for good.
        """
        self._namer = namer
        self._library.tl_name_at_backward(id(namer))

    def mark(self, number: int) -> None:
        """Note in the log that a moment with this number is now."""
        self._library.tl_record_mark(number)

    def thread_now(self) -> int:
        """Return the number that contexts know the calling thread by."""
        return int(self._library.tl_thread())

    def stack(self, number: int) -> list[tuple[int, int]]:
        """Return a stack, innermost first: number of the line, number of the module or -1."""
        frames, length = array("i", bytes(8 * _MOST_FRAMES)), ctypes.c_int64()
        start = frames.buffer_info()[0]
        if not self._library.tl_stack(number, ctypes.byref(length), start, _MOST_FRAMES):
            raise LookupError(f"no stack {number}")
        numbers = iter(frames[: 2 * length.value])
        return list(zip(numbers, numbers, strict=True))

    def context(self, number: int) -> tuple[int, int, int, int, int, int]:
        """Return thread, op, outer op, node, the node's stack, whether the op made nodes."""
        key = array("i", bytes(24))
        if not self._library.tl_context(number, key.buffer_info()[0]):
            raise LookupError(f"no context {number}")
        thread, op, outer, node, forward, grad = key
        return thread, op, outer, node, forward, grad

    def module(self, number: int) -> tuple[int, str]:
        """Return a module's address and the name of its type when it was first met."""
        name = ctypes.c_char_p()
        address = self._library.tl_module(number, ctypes.byref(name))
        if not address:
            raise LookupError(f"no module {number}")
        return address, (name.value or b"").decode("utf-8", "replace").rpartition(".")[2]

    def _look(
        self, found: object, which: int
    ) -> tuple[Columns, list[tuple[int, int]], int, int, int]:
        starts, figures = (_Address * (len(_CODES) + 1))(), (_Number * 5)()
        self._library.tl_record_look(
            found, which, ctypes.addressof(starts), ctypes.addressof(figures)
        )
        count, numbers, dropped, lost_stacks, unlisted = figures
        *columns, marks = starts
        each = iter(copied("q", marks, numbers))
        return (
            Columns(*map(copied, _CODES, columns, repeat(count))),
            list(zip(each, each, strict=True)),
            dropped,
            lost_stacks,
            unlisted,
        )
