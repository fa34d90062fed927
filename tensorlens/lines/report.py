"""Memory per source line: the records behind ``@profile`` and ``LineProfiler``.

Sizes are bytes and times nanoseconds, always exact integers. ``None`` stands for a figure that
could not be had; the device's ``missing`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Literal

from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run
from tensorlens.records.tensors import SourceLine

_OPTIONAL = ("backward", "rise", "growth", "residents")
"""Figures that a file leaves out where there are none, as files of before them do."""


@dataclass(frozen=True, slots=True)
class ResidentLine:
    """Bytes that one line had left when a backward pass began, without what it calls."""

    filename: str
    lineno: int
    function: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Figures of one line on one device, over all its executions.

    An execution runs from its line event to the next line event of the same frame, or to that
    frame's return, yield or raise; what it calls is included.
    """

    allocated: int | None
    """Bytes handed out by the allocator when the line ended; the largest over its hits."""
    peak: int | None
    """The most bytes handed out at any instant while the line ran; the largest over its hits."""
    reserved: int | None
    """Bytes the allocator held from the driver or the OS; the largest over its hits."""
    net: int | None
    """Allocated at the end minus at the start, summed over the hits."""
    net_max: int | None
    """The largest ``net`` of a single hit (negative where every hit freed)."""
    net_first: int | None
    """The ``net`` of the first hit."""
    backward: int | None = None
    """Bytes handed out in backward while the nodes ran that the line made, or what it calls. The
    sum of all recordings; None where none saw the function."""
    rise: int | None = field(default=None, compare=False)
    """How far ``peak`` is above what was handed out when that hit began; 0 where the line only ran
    while others' blocks were there."""
    growth: int | None = field(default=None, compare=False)
    """Part of ``net`` that can have stayed: by the next hit's start the device had grown by no less
    than is counted of a hit. The rest was given back elsewhere."""
    residents: tuple[ResidentLine, ...] | None = field(default=None, compare=False)
    """Of a line that runs a backward pass: the lines that had left most when the one with ``peak``
    began, since the end of the one before it; None of all others."""


@dataclass(frozen=True, slots=True)
class Line:
    """One source line of a profiled function."""

    lineno: int
    source: str
    hits: int = 0
    """How often it ran; 0 leaves ``memory`` empty: never run is not the same as zero bytes."""
    time_ns: int = 0
    """Wall time over all hits, calls included."""
    memory: Mapping[str, LineMemory] = field(default_factory=dict)
    """Device name (``cpu``, ``cuda:0``) to figures."""
    raised: str | None = None
    """The exception that left the function from this line, as ``Type: text``; the latest one."""


Execution = Literal["lines", "graph", "XLA"]


@dataclass(frozen=True, slots=True)
class FunctionLines:
    """The lines of one profiled function, in source order."""

    name: str
    qualname: str
    module: str
    filename: str
    first_line: int
    """Number of the first line of ``lines``: the first decorator, else the ``def``."""
    calls: int
    lines: tuple[Line, ...]
    note: str | None = None
    """Note for the reader: never called, compiled away, source not found."""
    execution: Execution = "lines"
    """Kind of execution. Of a ``graph``, lines ran once, to build it: a line's figures are
    those of the graph's nodes that it made, itself or by what it called. ``hits`` are the calls of
    the graph in which these were handed memory; ``allocated`` is the most that they were handed in
    one call, ``peak`` the most of it at once, ``net`` what of it was left when a call ended, and
    ``backward`` what the gradients of these nodes took in one call. What ``XLA`` compiled has no
    such nodes: its one line is all of it."""
    whole: Mapping[str, LineMemory] = field(default_factory=dict)
    """Of graphs: device to the same figures of all their nodes, whoever made them."""

    @property
    def has_backward(self) -> bool:
        """Whether a recording tells what its lines took in backward."""
        figures = (memory for line in self.lines for memory in line.memory.values())
        return any(memory.backward is not None for memory in figures)


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """Where a device's figures come from."""

    name: str
    """torch's spelling: ``cpu``, ``cuda:0``, ``xpu:1``, ``mps``."""
    source: str
    """Name of the counter, for the header: ``CUDA caching allocator``."""
    precision: str
    """How exact it is: ``exact``, ``to 512 B``, ``to the page``, ..."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Field name of :class:`LineMemory` to the reason it is ``None`` on this device."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a program before its last line."""

    cause: str
    """A signal (``SIGTERM``), or the type of an exception that nobody caught."""
    line: SourceLine | None
    """The innermost line of the user's code that ran then."""


@dataclass(frozen=True, slots=True)
class LineReport(Document):
    """Line tables of one process; prints itself as text and, in a notebook, as HTML.

    As a table: one row per function, line and device.
    """

    SCHEMA: ClassVar[str] = "tensorlens.lines"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "line report"
    PRESENTER: ClassVar[str] = "tensorlens.lines.present"

    functions: tuple[FunctionLines, ...]
    devices: tuple[DeviceSource, ...]
    provenance: str = "measured"
    process: str | None = None
    """Set when it is not of the only process: ``rank 1 of 2, process 4711 (SpawnProcess-1)``."""
    notes: tuple[str, ...] = ()
    """Notes on the whole report: a fallback in use, a tracer that cut in."""
    ending: Ending | None = None
    """Set where the program did not come to its end: then the last hit of a line is no part of its
    :attr:`~LineMemory.growth`, as it may be of a step that had not ended."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def has_backward(self) -> bool:
        """Whether a recording tells what lines took in backward."""
        return any(function.has_backward for function in self.functions)

    def without_source(self) -> LineReport:
        """Return it without the text of the lines: itself where there is none."""
        if not any(line.source for function in self.functions for line in function.lines):
            return self
        functions = (
            replace(each, lines=tuple(replace(line, source="") for line in each.lines))
            for each in self.functions
        )
        return replace(self, functions=tuple(functions))

    def _fields(self) -> dict[str, Any]:
        data = asdict(self)
        for function in data["functions"]:
            maps = (*(line["memory"] for line in function["lines"]), function["whole"])
            for memory in chain.from_iterable(each.values() for each in maps):
                for name in _OPTIONAL:
                    if memory[name] is None:
                        del memory[name]
            if function["execution"] == "lines":
                del function["execution"], function["whole"]
        return data
