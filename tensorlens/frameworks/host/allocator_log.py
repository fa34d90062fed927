"""Reader of the native log: allocations and frees of a counting allocator, as columns."""

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
    "tl_stack": (_Number, (ctypes.c_int32, _Address, _Address, _Number)),
    "tl_context": (ctypes.c_int, (ctypes.c_int32, _Address)),
    "tl_thread": (ctypes.c_int32, ()),
    "tl_module": (ctypes.c_uint64, (ctypes.c_int32, _Address)),
}
_MAX_FRAMES = 512
"""Frames of one stack: the native part reads no more."""


@dataclass(slots=True)
class Columns:
    """Columns of ``records.logs.events`` with the native part's numbers.

    ``birth`` is the number of the line that allocated a block from before the recording;
    ``owner`` is the row of the block whose gradient this is.
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
    """Events dropped before the first row, for lack of room."""
    dropped_peak: Columns
    """Blocks resident at the peak of the dropped events."""
    unlisted: int
    """Bytes of blocks that could not be listed for want of memory, at the first event or at the
    peak of the dropped ones: the larger of both."""
    lost_stacks: int
    """Events without a stack, as there was no more room for stacks."""


class NativeRecorder:
    """Recorder of one counting allocator, in spans that may overlap.

    Args:
        allocator: the allocator to record.
    """

    def __init__(self, allocator: NativeAllocator) -> None:
        self.allocator = allocator
        self._library = allocator.library
        declare(self._library, _SIGNATURES)
        self._lock = reentrant_lock()
        self.no_ops: str | None = None
        """Reason why operators and nodes are unknown, set if :meth:`start_ops` fails."""

    def start_ops(self) -> None:
        """Start noting operators, if the framework does not always."""

    def stop_ops(self) -> None:
        """Stop noting operators."""

    def begin(self, limit: int, ops: bool = True) -> object:
        """Start recording a span; births must be watched.

        The span ends with :meth:`read`, or when the last reference to it goes.

        Args:
            limit: number of events to keep; the oldest are dropped first.
            ops: note operators and autograd's nodes too, for all open spans.

        Raises:
            NativeUnavailable: stacks cannot be read on this Python.
            MemoryError: no memory for the list of existing blocks.
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
        """Return the rows of a span so far; ``end`` closes it.

        Raises:
            MemoryError: no memory for the columns. The span is closed all the same.
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
        rows, dropped, lost_stacks, unlisted = self._look(found, 0)
        peak, *_ = self._look(found, 1)
        return LogRows(rows, dropped, peak, unlisted, lost_stacks)

    def name_at_backward(self, namer: Callable[[], None]) -> None:
        """Have ``namer`` called on the main thread when backward begins.

        At that moment all that the forward pass saved is alive. It is called in passes 1, 2, 4, 8
        and so on, and when new modules were met. There is one namer, which is kept for good.
        """
        self._namer = namer
        self._library.tl_name_at_backward(id(namer))

    def thread_now(self) -> int:
        """Return the number of the calling thread in contexts."""
        return int(self._library.tl_thread())

    def stack(self, number: int) -> list[tuple[int, int]]:
        """Return the numbers of line and module (-1 for none) of each frame, innermost first."""
        frames, length = array("i", bytes(8 * _MAX_FRAMES)), ctypes.c_int64()
        start = frames.buffer_info()[0]
        if not self._library.tl_stack(number, ctypes.byref(length), start, _MAX_FRAMES):
            raise LookupError(f"no stack {number}")
        numbers = iter(frames[: 2 * length.value])
        return list(zip(numbers, numbers, strict=True))

    def context(self, number: int) -> tuple[int, int, int, int, int, int]:
        """Return thread, op, outer op, node, the node's stack, and whether the op made nodes."""
        key = array("i", bytes(24))
        if not self._library.tl_context(number, key.buffer_info()[0]):
            raise LookupError(f"no context {number}")
        thread, op, outer, node, forward, grad = key
        return thread, op, outer, node, forward, grad

    def module(self, number: int) -> tuple[int, str]:
        """Return a module's address, and its type's name as first met."""
        name = ctypes.c_char_p()
        address = self._library.tl_module(number, ctypes.byref(name))
        if not address:
            raise LookupError(f"no module {number}")
        return address, (name.value or b"").decode("utf-8", "replace").rpartition(".")[2]

    def _look(self, found: object, which: int) -> tuple[Columns, int, int, int]:
        columns, figures = (_Address * len(_CODES))(), (_Number * 4)()
        self._library.tl_record_look(
            found, which, ctypes.addressof(columns), ctypes.addressof(figures)
        )
        count, dropped, lost_stacks, unlisted = figures
        rows = Columns(*map(copied, _CODES, columns, repeat(count)))
        return rows, dropped, lost_stacks, unlisted
