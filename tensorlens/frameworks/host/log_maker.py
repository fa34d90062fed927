"""A recording's log from the rows of the native log; lifetimes and names of its blocks."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, count, repeat
from operator import ge, lt, sub

from tensorlens.frameworks.host.allocator_log import Columns, NativeRecorder
from tensorlens.heap.frames import TEMPORARY
from tensorlens.records.families import TOGETHER
from tensorlens.records.logs.events import ALLOC, Context, EventLog, Label
from tensorlens.records.logs.stacks import Frame
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES
from tensorlens.units import rounded_up
from tensorlens.user_code import is_foreign

ModuleName = Callable[[int, str], str]
"""Maps a module's address and type name to its path."""
AT_THE_END = 2**63 - 1
"""Time after the last event."""
_ANONYMOUS_PREFIXES = ("made at ", "<cell>")
"""Prefixes of names of tensors without a named holder."""


class LogMaker:
    """Builder of logs; each stack and context is looked up once.

    Args:
        recorder: the source of the rows and of their numbers.
        module_name: returns the present path of a module.
        thread: the recording's own thread, number 0; others are numbered as they are met.
    """

    def __init__(self, recorder: NativeRecorder, module_name: ModuleName, thread: int) -> None:
        self._recorder = recorder
        self._module_name = module_name
        self._threads = {thread: 0}
        self._frames: dict[int, Frame] = {}
        self._modules: dict[int, str] = {}

    def log(self, rows: Columns, started: int) -> EventLog:
        """Return the log of these rows, with times since ``started`` (monotonic nanoseconds)."""
        log = EventLog()
        log.devices.number("cpu")
        log.kind, log.address, log.size, log.pair = rows.kind, rows.address, rows.size, rows.pair
        log.device = array("b", bytes(len(rows.kind)))
        log.label = array("i", [-1]) * len(rows.kind)
        starts = log.starts
        # 0: from before the recording
        log.time = array("q", (max(time - started, 0) for time in rows.time[:starts]))
        log.time.extend(array("q", map(sub, rows.time[starts:], repeat(started))))
        contexts = {
            number: self._recorder.context(number)
            for number in dict.fromkeys(rows.context)
            if number >= 0
        }
        wanted = set(rows.stack).union(forward for *_, forward, _ in contexts.values()) - {-1}
        stacks = {number: self._stack(log, number) for number in wanted}
        stacks[-1] = -1
        log.stack = array("i", map(stacks.__getitem__, rows.stack))
        numbers = {
            number: log.contexts.number(self._context(key, stacks))
            for number, key in contexts.items()
        }
        numbers[-1] = -1
        log.context = array("i", map(numbers.__getitem__, rows.context))
        self._add_births(log, rows, starts)
        return log

    def thread(self, number: int) -> int:
        """Map the recorder's number of a thread to the log's."""
        return self._threads.setdefault(number, len(self._threads))

    def _stack(self, log: EventLog, number: int) -> int:
        node = -1
        for line, module in reversed(self._recorder.stack(number)):
            node = log.stacks.push(node, self._frame(line), self._module(module))
        return node

    def _frame(self, line: int) -> Frame:
        frame = self._frames.get(line)
        if frame is None:
            filename, lineno, function = self._recorder.allocator.birth_line(line)
            frame = Frame(filename, lineno, function, not is_foreign(filename))
            self._frames[line] = frame
        return frame

    def _module(self, number: int) -> str | None:
        if number < 0:
            return None
        if number not in self._modules:
            self._modules[number] = self._module_name(*self._recorder.module(number))
        return self._modules[number]

    def _context(
        self, key: tuple[int, int, int, int, int, int], stacks: Mapping[int, int]
    ) -> Context:
        thread, op, outer, node, forward, grad = key
        name = self._recorder.allocator.op_name
        return Context(
            thread=self.thread(thread),
            op=name(op),
            node=name(node),
            forward=stacks[forward],
            outer=name(outer) if outer != op else None,
            grad=bool(grad),
        )

    def _add_births(self, log: EventLog, rows: Columns, starts: int) -> None:
        """Give blocks from before the recording their birth line as a stack of one frame."""
        for row in range(starts):
            if log.stack[row] < 0 and rows.birth[row] >= 0:
                log.stack[row] = log.stacks.push(-1, self._frame(rows.birth[row]))


TimeSpan = tuple[int, int]
"""The begin and the end of a span of time, in monotonic nanoseconds."""


def rows_during(span: TimeSpan, rows: Columns, until: array[int]) -> list[int]:
    """Return the rows of the blocks that lived all through a span.

    Blocks from before the recording have times before it; the times of the others rise.

    Args:
        span: the span.
        rows: rows of the log.
        until: for each of them, until when its block surely lived.
    """
    begin, end = span
    last = bisect_left(rows.time, begin, bisect_left(rows.kind, ALLOC))
    lasting = compress(range(last), map(ge, until, repeat(end)))
    return [row for row in lasting if rows.time[row] < begin]


def dropped_ends(peak: Columns, rows: Columns) -> array[int]:
    """Return until when the blocks surely lived that were resident at the dropped events' peak.

    Blocks that outlived the dropped events are among ``rows``, with their ends. The others lived
    at least until the peak, which is the time of the newest of them.
    """
    kept = dict(zip(zip(rows.address, rows.time, strict=True), block_ends(rows), strict=True))
    instant = max(peak.time, default=0)
    blocks = zip(peak.address, peak.time, strict=True)
    return array("q", (max(kept.get(key, 0), instant) for key in blocks))


def block_ends(rows: Columns) -> array[int]:
    """Return the time at which each row's block was freed; for frees no later than their own."""
    until = array("q", map(rows.time.__getitem__, rows.pair))
    for row in compress(count(), map(lt, rows.pair, repeat(0))):
        until[row] = AT_THE_END if rows.kind[row] <= ALLOC else rows.time[row]
    return until


class AddressNames:
    """Names by address on a device, from one census.

    Args:
        table: the tensors of the census.
        device: the device, in torch's spelling.
        rounding: unit of the allocator's sizes, in bytes.
    """

    def __init__(self, table: TensorTable, device: str = "cpu", rounding: int = 1) -> None:
        self._table = table
        self._rounding = rounding
        number = table.devices.index(device) if device in table.devices else -1
        self._rows = {
            table.storage[row]: row
            for row in table.counted()
            if table.device[row] == number and table.storage_nbytes[row]
        }

    def at(self, address: int, size: int) -> Label | None:
        """Return the name of the storage of this size at an address."""
        row = self._rows.get(address)
        table = self._table
        if row is None or rounded_up(table.storage_nbytes[row], self._rounding) != size:
            return None
        note = table.note[row]
        together = TOGETHER.get(table.notes[note]) if note >= 0 else None
        return Label(
            name=together or table.names[table.name[row]],
            role=ROLES[table.role[row]],
            dtype=table.dtypes[table.dtype[row]],
            shape=table.shapes[table.shape[row]],
        )


def name_blocks(
    log: EventLog,
    owner: Sequence[int],
    found: Iterable[tuple[AddressNames, Iterable[int]]],
    device: int = 0,
) -> None:
    """Name a device's blocks: from censuses, and gradients by their parameter.

    Args:
        log: the log with the blocks.
        owner: for each row the row whose gradient it is, or -1; empty if unknown.
        found: each census with the rows of the blocks that lived then. A later name replaces an
            earlier one, unless it says less.
        device: number of the device.
    """
    for names, rows in found:
        for row in rows:
            if log.device[row] == device:
                label = names.at(log.address[row], log.size[row])
                if label is not None and not _is_known_better(log, row, label):
                    log.name(row, label)
    gradients: dict[int, Label] = {}
    for row in compress(count(), map(ge, owner, repeat(0))):
        number = log.label[owner[row]]
        if number >= 0 and log.label[row] < 0:
            if number not in gradients:
                parameter = log.labels[number]
                gradient = replace(parameter, name=f"{parameter.name}.grad", role="gradient")
                gradients[number] = gradient
            log.name(row, gradients[number])


def _is_known_better(log: EventLog, row: int, label: Label) -> bool:
    """Return whether an earlier name of a block, or the operator that made it, says more."""
    if label.role != "other":
        return False
    context = log.context[row]
    made = context >= 0 and log.contexts[context].op is not None
    is_anonymous = label.name.startswith(_ANONYMOUS_PREFIXES) or label.name.endswith(TEMPORARY)
    return log.label[row] >= 0 or (made and is_anonymous)
