"""A log: allocations and frees in order, in columns of about forty bytes an event.

Sizes are exact bytes, times nanoseconds. Nothing here refers to the allocated memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from tensorlens.interpreter import reentrant_lock
from tensorlens.records.logs.stacks import Frame, Stacks
from tensorlens.records.row_sequence import InternTable, RowSequence, array_column, columns_of
from tensorlens.records.run import Run, current_run

START, ALLOC, FREE, SEGMENT_ALLOC, SEGMENT_FREE, OOM = range(6)
"""Kinds of events: a block from before the first event, an allocation, a free; a segment that the
allocator took from the driver or returned to it; a failed request, whose address is the driver's
free bytes, as in torch's traces."""

ACTIONS = ("start", "alloc", "free", "segment_alloc", "segment_free", "oom")

Phase = Literal["forward", "backward", "optimizer", "other"]

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Context:
    """Operator, node and thread of an event, beside its Python stack."""

    thread: int = 0
    """Number of the thread, in order of appearance; 0 is the recording's own."""
    op: str | None = None
    """Innermost operator: ``aten::addmm``."""
    node: str | None = None
    """The autograd node that ran: ``AddmmBackward0``; None outside of backward."""
    forward: int = -1
    """Number of the stack on which that node was made; -1 if unknown."""
    outer: str | None = None
    """Outermost operator, if it is another one: ``aten::linear``."""
    grad: bool = False
    """Whether that operator made an autograd node, as forward computation does."""
    phase: Phase | None = None
    """One of :data:`PHASES` if the recorder knows it; otherwise it follows from the stack."""
    module: str | None = None
    """Path of the running module if the recorder knows it; otherwise it is on the stack."""


@dataclass(frozen=True, slots=True)
class Label:
    """A census's finding at a block's address."""

    name: str
    role: str
    """One of :data:`tensorlens.roles.ROLES`."""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


OWN_MARK = "tensorlens: "
"""Prefix of the names of our own marks, which are not shown."""
GRAPH_CALL = f"{OWN_MARK}graph call"
"""Name of marks at calls of functions that run as graphs."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment named by the program, or by us (:data:`OWN_MARK`)."""

    name: str
    row: int
    """Number of rows before it."""
    time_ns: int


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """One block of a segment, as the allocator lists it at the recording's end."""

    address: int
    size: int
    """Bytes of the block, remainder included."""
    requested: int
    """Requested bytes; 0 for a free block."""
    state: str
    """``active_allocated``, ``active_pending_free`` or ``inactive``."""
    stack: int = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the allocator holds from the driver at the recording's end."""

    device: str
    address: int
    size: int
    stream: int = 0
    kind: str = "large"
    """``large`` or ``small``."""
    expandable: bool = False
    pool: str | None = None
    """Private pool, as of a CUDA graph."""
    blocks: tuple[SegmentBlock, ...] = ()
    stack: int = -1


@dataclass(frozen=True, slots=True)
class Event:
    """One event, put together from the columns of an :class:`EventLog`."""

    row: int
    action: str
    """One of :data:`ACTIONS`."""
    device: str
    address: int
    nbytes: int
    """Bytes as the allocator's figure ``allocated`` counts them."""
    time_ns: int
    """Nanoseconds since the recording began."""
    stack: tuple[Frame, ...]
    """Innermost first."""
    module: str | None
    context: Context
    label: Label | None
    pair: int
    """For an allocation the row of its free, for a free that of its allocation; -1 if none."""


@dataclass(eq=False, repr=False)
class EventLog(RowSequence[Event]):
    """Events in columns, and what they refer to by number; behaves as a sequence of events.

    Rows are in order of time; the first ones are :data:`START` rows. Their time is 0 for blocks
    from before the recording; for blocks that a dropped event made it is the time of that event,
    above 0, and the stack and context are the event's.
    """

    COLUMNS: ClassVar[Mapping[str, str]]
    """Column to its type code of :mod:`array`. In a column of numbers, -1 stands for none."""

    kind: array[int] = array_column("b")
    device: array[int] = array_column("b")
    address: array[int] = array_column("Q")
    size: array[int] = array_column("q")
    time: array[int] = array_column("q")
    stack: array[int] = array_column("i")
    context: array[int] = array_column("i")
    label: array[int] = array_column("i")
    pair: array[int] = array_column("i")
    devices: InternTable[str] = field(default_factory=InternTable)
    stacks: Stacks = field(default_factory=Stacks)
    contexts: InternTable[Context] = field(default_factory=InternTable)
    labels: InternTable[Label] = field(default_factory=InternTable)
    held: dict[int, int] = field(default_factory=dict)
    """Row of an allocation to the bytes that the allocator set aside for the block, if more than
    ``size``: with a remainder too small to split off."""
    marks: list[Mark] = field(default_factory=list)
    dropped_marks: list[str] = field(default_factory=list)
    """Names of the marks before which all events were dropped."""
    segments: list[Segment] = field(default_factory=list)
    """Segments of the allocator at the end, if known."""
    segments_known: bool = field(default_factory=bool)
    sources: dict[str, list[str]] = field(default_factory=dict)
    """File name to its lines, for the files of the user that have events."""
    _open: dict[tuple[int, int], int] = field(default_factory=dict)

    def append(
        self,
        kind: int,
        device: str,
        address: int,
        size: int,
        time: int,
        stack: int = -1,
        context: Context | None = None,
    ) -> int:
        """Add an event and return its row; a free finds its allocation by the address."""
        row = len(self.kind)
        number = self.devices.number(device)
        pair = -1
        if kind == FREE:
            pair = self._open.pop((number, address), -1)
            if pair >= 0:
                self.pair[pair] = row
        elif kind in (START, ALLOC):
            self._open[number, address] = row
        self.kind.append(kind)
        self.device.append(number)
        self.address.append(address)
        self.size.append(size)
        self.time.append(time)
        self.stack.append(stack)
        self.context.append(-1 if context is None else self.contexts.number(context))
        self.label.append(-1)
        self.pair.append(pair)
        return row

    @property
    def starts(self) -> int:
        """Number of rows for blocks from before the first event."""
        return next((row for row, kind in enumerate(self.kind) if kind != START), len(self.kind))

    def allocations(self, device: int | None = None) -> list[int]:
        """Return the rows of a device's blocks, or of all, also of those from before."""
        rows = enumerate(zip(self.kind, self.device, strict=True))
        return [row for row, (kind, here) in rows if kind < FREE and device in (None, here)]

    def was_before(self, row: int) -> bool:
        """Return whether a block is from before the recording."""
        return self.kind[row] == START and self.time[row] <= 0

    def name(self, row: int, label: Label) -> None:
        """Label the block of an allocation."""
        self.label[row] = self.labels.number(label)

    def add_marks(self, marks: Iterable[tuple[str, int]], dropped: int) -> None:
        """Add marks, given by names and times, where they belong among the events.

        If events were dropped, marks before the first event that is left are dropped too.
        """
        first = self.starts
        for name, time in marks:
            row = bisect_right(self.time, time, first)
            if row > first or not dropped:
                self.marks.append(Mark(name, row, time))
            elif not name.startswith(OWN_MARK):
                self.dropped_marks.append(name)
        self.marks.sort(key=lambda mark: mark.row)

    def sibling(self) -> EventLog:
        """Return an empty log that shares stacks, contexts and labels with this one."""
        log = EventLog()
        log.stacks, log.contexts, log.labels = self.stacks, self.contexts, self.labels
        return log

    def adopted(self, other: EventLog, *, threads: int = 0) -> EventLog:
        """Return another log's events and segments, with the numbers of this one's tables.

        The tables are stacks, contexts and labels; missing ones are added, and devices keep the
        other's numbers. Threads other than the recording's own are numbered on from ``threads``.
        """
        log = self.sibling()
        for column in self.COLUMNS:
            setattr(log, column, getattr(other, column)[:])
        log.devices, log.held = InternTable(other.devices), dict(other.held)
        nodes = [*self.stacks.adopted(other.stacks), -1]
        contexts = [
            self.contexts.number(
                replace(
                    each,
                    forward=nodes[each.forward],
                    thread=each.thread and each.thread + threads,
                )
            )
            for each in other.contexts
        ]
        labels = map(self.labels.number, other.labels)
        log.stack = _renumbered(other.stack, nodes)
        log.context = _renumbered(other.context, [*contexts, -1])
        log.label = _renumbered(other.label, [*labels, -1])
        log.segments = [
            replace(
                each,
                stack=nodes[each.stack],
                blocks=tuple(replace(block, stack=nodes[block.stack]) for block in each.blocks),
            )
            for each in other.segments
        ]
        return log

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"<{len(self)} events>"

    # a log may still grow: it is equal to itself only
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def record(self, row: int) -> Event:
        """Return one event, without checking ``row``."""
        stacks, stack = self.stacks, self.stack[row]
        context, label = self.context[row], self.label[row]
        modules = (stacks.module[node] for node in stacks.nodes(stack))
        module = next((stacks.modules[number] for number in modules if number >= 0), None)
        return Event(
            row=row,
            action=ACTIONS[self.kind[row]],
            device=self.devices[self.device[row]],
            address=self.address[row],
            nbytes=self.size[row],
            time_ns=self.time[row],
            stack=stacks.of(stack),
            module=module,
            context=Context() if context < 0 else self.contexts[context],
            label=None if label < 0 else self.labels[label],
            pair=self.pair[row],
        )


def _renumbered(column: array[int], numbers: Sequence[int]) -> array[int]:
    """Return a column with new numbers; the last one is that of -1."""
    return array("i", map(numbers.__getitem__, column))


EventLog.COLUMNS = columns_of(EventLog)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a recording is from, for its header."""

    provenance: str = "measured"
    process: str | None = None
    source: Mapping[str, str] = field(default_factory=dict)
    """Device to its recorder: ``torch CPU allocator``, ``CUDA memory history``."""
    started: float | None = None
    """Start in seconds since 1970, if known."""
    dropped: int = 0
    """Number of events before the log's first, for which there was no room."""
    dropped_peaks: Mapping[str, EventLog] = field(default_factory=dict)
    """Device to the blocks at the highest dropped instant, as START rows."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: a fallback in use, missing stacks."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)
    started_ns: int | None = field(default=None, compare=False)
    """Start by :func:`time.monotonic_ns`, if events use that clock; known in the recording process
    only."""


Recorded = tuple[EventLog, Origin]
"""Log and origin of one recorder."""

_lock = reentrant_lock()


class DeferredLog(EventLog):
    """A log that is made at the first access to an attribute."""

    def __init__(self, make: Callable[[], EventLog]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        """Make the log, and return its attribute."""
        # copy and pickle look for optional methods
        if name.startswith("__"):
            raise AttributeError(name)
        with _lock:
            if type(self) is DeferredLog:
                made = self._make()
                self.__dict__.clear()
                self.__dict__.update(made.__dict__)
                self.__class__ = EventLog  # type: ignore[assignment]
        return getattr(self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Make the log, and pickle it as an :class:`EventLog`."""
        len(self)
        return self.__reduce_ex__(protocol)
