"""The log of a recording: what the native rows mean, and the names of their blocks.

A block's name is what a census finds at its address, or that of whose gradient it is.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count, repeat
from operator import ge, lt, sub

from tensorlens.frameworks.host.allocator_log import Columns, NativeRecorder
from tensorlens.heap.frames import TEMPORARY
from tensorlens.records.events import ALLOC, Context, EventLog, Label
from tensorlens.records.families import TOGETHER
from tensorlens.records.stacks import Frame
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES
from tensorlens.units import rounded_up
from tensorlens.user_code import is_foreign

ModuleName = Callable[[int, str], str]
"""Gives the path of a module by its address and the name of its type."""


class LogMaker:
    """Makes logs; what stacks and contexts mean is looked up once.

    Args:
        recorder: whose numbers the columns hold.
        module_name: names a module, as it can be found now.
        thread: the recording's own; it gets the number 0, others come in the order they are met.
    """

    def __init__(self, recorder: NativeRecorder, module_name: ModuleName, thread: int) -> None:
        self._recorder = recorder
        self._module_name = module_name
        self._threads = {thread: 0}
        self._frames: dict[int, Frame] = {}
        self._modules: dict[int, str] = {}

    def log(self, rows: Columns, started: int) -> EventLog:
        """Return the log of these rows; times count from ``started``, monotonic nanoseconds."""
        log = EventLog()
        log.device_number("cpu")
        log.kind, log.address, log.size, log.pair = rows.kind, rows.address, rows.size, rows.pair
        log.device = array("b", bytes(len(rows.kind)))
        log.label = array("i", [-1]) * len(rows.kind)
        starts = log.starts
        # below 0: it was there before the recording, whatever is known of when it was made
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
            number: log.context_number(self._context(key, stacks))
            for number, key in contexts.items()
        }
        numbers[-1] = -1
        log.context = array("i", map(numbers.__getitem__, rows.context))
        self._add_births(log, rows, starts)
        return log

    def thread(self, number: int) -> int:
        """Return the log's number of a thread by the recorder's; they come as they are met."""
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
        """Give blocks from before the one line that is known of them."""
        for row in range(starts):
            if log.stack[row] < 0 and rows.birth[row] >= 0:
                log.stack[row] = log.stacks.push(-1, self._frame(rows.birth[row]))


def sources_of(log: EventLog, read: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """Return the lines of the user's files that have events.

    Of files that define a library's models only the lines that have events are not empty.
    """
    files: Iterable[str] = dict.fromkeys(
        frame.filename for frame in log.stacks.frames if frame.user
    )
    found = _of_models(log, read)
    for file in files:
        lines = read(file) if not file.startswith("<") or file.startswith("<ipython") else []
        if lines and sum(map(len, lines)) < 2_000_000:
            found[os.fspath(file)] = lines
    return found


def _of_models(log: EventLog, read: Callable[[str], list[str]]) -> dict[str, list[str]]:
    numbers: dict[str, set[int]] = {}
    for frame in log.stacks.frames:
        if frame.model:
            numbers.setdefault(frame.filename, set()).add(frame.lineno)
    found = {}
    for file, wanted in numbers.items():
        lines = read(file)
        last = min(max(wanted), len(lines))
        found[file] = [lines[each - 1] if each in wanted else "" for each in range(1, last + 1)]
    return found


AT_THE_END = 2**63 - 1
"""The time of what happens after the last event."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time, in monotonic nanoseconds."""

    begin: int
    end: int


class Lifetimes:
    """When the block of each row was handed out, and until when it is known to have been there.

    Times are monotonic nanoseconds; those of blocks from before the recording are before it. From
    the row ``first`` on they rise.
    """

    def __init__(self, made: array[int], until: array[int], first: int) -> None:
        self._made = made
        self._until = until
        self._first = first

    def there(self, span: TimeSpan) -> list[int]:
        """Return the rows of the blocks that were there all of a span."""
        last = bisect_left(self._made, span.begin, self._first)
        lasting = compress(range(last), map(ge, self._until, repeat(span.end)))
        return [row for row in lasting if self._made[row] < span.begin]


def event_lifetimes(rows: Columns) -> Lifetimes:
    """Return the lifetimes of the blocks of all events."""
    return Lifetimes(rows.time, _ends(rows), bisect_left(rows.kind, ALLOC))


def dropped_lifetimes(peak: Columns, rows: Columns) -> Lifetimes:
    """Return the lifetimes of what was resident at the highest instant among dropped events.

    Those that outlived these events are among the ``rows``, where their end is known. Of the
    others it is known that they were there at that instant, which its newest block made.
    """
    kept = dict(zip(zip(rows.address, rows.time, strict=True), _ends(rows), strict=True))
    instant = max(peak.time, default=0)
    blocks = zip(peak.address, peak.time, strict=True)
    until = array("q", (max(kept.get(key, 0), instant) for key in blocks))
    return Lifetimes(peak.time, until, len(until))


def _ends(rows: Columns) -> array[int]:
    """Return when each row's block was given back; of a row that is no block, when it began."""
    until = array("q", map(rows.time.__getitem__, rows.pair))
    for row in compress(count(), map(lt, rows.pair, repeat(0))):
        until[row] = AT_THE_END if rows.kind[row] <= ALLOC else rows.time[row]
    return until


_NOBODYS = ("made at ", "<cell>")
"""How a census's names begin of what nothing holds that has a name."""


def _is_nobodys(name: str) -> bool:
    return name.startswith(_NOBODYS) or name.endswith(TEMPORARY)


class AddressNames:
    """Names by address on a device, from one census.

    Args:
        table: what the census found.
        device: torch's spelling.
        rounding: the allocator hands out multiples of so many bytes.
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
        """Return the name of the storage of this size that begins at this address."""
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


def label(
    log: EventLog,
    owner: Sequence[int],
    found: Iterable[tuple[AddressNames, Iterable[int]]],
    device: int = 0,
) -> None:
    """Name a device's blocks: what censuses saw, and gradients by their parameter.

    Args:
        log: whose blocks.
        owner: for each row that of what it is the gradient of, or -1; none where unknown.
        found: each census with the rows of the blocks that were there then. A later name comes
            before an earlier one, unless it says less.
        device: number of the device.
    """
    for names, rows in found:
        for row in rows:
            if log.device[row] == device:
                name = names.at(log.address[row], log.size[row])
                if name is not None and not _is_known_better(log, row, name):
                    log.name(row, name)
    gradients: dict[int, Label] = {}
    for row in compress(count(), map(ge, owner, repeat(0))):
        number = log.label[owner[row]]
        if number >= 0 and log.label[row] < 0:
            if number not in gradients:
                parameter = log.labels[number]
                gradient = replace(parameter, name=f"{parameter.name}.grad", role="gradient")
                gradients[number] = gradient
            log.name(row, gradients[number])


def _is_known_better(log: EventLog, row: int, name: Label) -> bool:
    """Tell whether an earlier name of a block, or the operator that made it, says more."""
    if name.role != "other":
        return False
    context = log.context[row]
    made = context >= 0 and log.contexts[context].op is not None
    return log.label[row] >= 0 or (made and _is_nobodys(name.name))


def unfreed(log: EventLog) -> list[int]:
    """Return the rows of what was still there at the end."""
    rows = zip(log.kind, log.pair, strict=True)
    return [row for row, (kind, pair) in enumerate(rows) if kind <= ALLOC and pair < 0]
