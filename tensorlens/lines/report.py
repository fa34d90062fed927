"""Memory per source line: the records behind ``@profile`` and ``LineProfiler``.

Sizes are bytes and times nanoseconds, always exact integers. ``None`` is an unknown figure; the
device's ``missing`` says why.
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
"""Figures that a file omits if None; older files never have them."""


@dataclass(frozen=True, slots=True)
class ResidentLine:
    """Bytes that one line, without its callees, had left when a backward pass began."""

    filename: str
    lineno: int
    function: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Figures of one line on one device, over all its executions.

    An execution runs from its line event to the next line event of the same frame, or to that
    frame's return, yield or raise; its callees are included.
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
    """The largest ``net`` of a single hit (negative if every hit freed)."""
    net_first: int | None
    """The ``net`` of the first hit."""
    backward: int | None = None
    """Bytes handed out in backward by the nodes that the line or its callees made, summed over all
    recordings; None if none saw the function."""
    rise: int | None = field(default=None, compare=False)
    """``peak`` minus the bytes handed out when that hit began; 0 if the line itself took none."""
    growth: int | None = field(default=None, compare=False)
    """Part of ``net`` that can have stayed: of each hit at most the device's growth until the next
    one began. The rest was freed elsewhere."""
    residents: tuple[ResidentLine, ...] | None = field(default=None, compare=False)
    """For a line that runs backward passes: the lines that had left most between the previous pass
    and that with ``peak``. None for all other lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """One source line of a profiled function."""

    lineno: int
    source: str
    hits: int = 0
    """Number of executions; if 0, ``memory`` is empty: not run is not the same as zero bytes."""
    time_ns: int = 0
    """Wall time over all hits, calls included."""
    memory: Mapping[str, LineMemory] = field(default_factory=dict)
    """Device name (``cpu``, ``cuda:0``) to figures."""
    raised: str | None = None
    """The last exception that left the function from this line, as ``Type: text``."""


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
    """Kind of execution. The lines of a ``graph`` ran once, to build it: a line's figures are those
    of the nodes made by it or its callees. ``hits`` counts the calls of the graph in which they
    were handed memory; ``allocated`` is the most they were handed in one call, ``peak`` the most of
    it at once, ``net`` what remained of it after a call, and ``backward`` the most handed to their
    gradients in one call. A graph compiled by ``XLA`` has no such nodes, and one line."""
    whole: Mapping[str, LineMemory] = field(default_factory=dict)
    """For graphs: device to the same figures of all nodes, whichever line made them."""

    @property
    def has_backward(self) -> bool:
        """Whether a recording has figures of its lines in backward."""
        figures = (memory for line in self.lines for memory in line.memory.values())
        return any(memory.backward is not None for memory in figures)


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """The counter of a device's figures."""

    name: str
    """torch's spelling: ``cpu``, ``cuda:0``, ``xpu:1``, ``mps``."""
    source: str
    """Name of the counter, for the header: ``CUDA caching allocator``."""
    precision: str
    """Precision: ``exact``, ``to 512 B``, ``to the page``, ..."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Field name of :class:`LineMemory` to the reason why it is ``None`` on this device."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The early end of a program."""

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
    """Set for one of several processes: ``rank 1 of 2, process 4711 (SpawnProcess-1)``."""
    notes: tuple[str, ...] = ()
    """Notes on the whole report: a fallback in use, another tracer that took over."""
    ending: Ending | None = None
    """Set if the program ended early: the last hit of a line then is no part of its
    :attr:`~LineMemory.growth`, as it may belong to an unfinished step."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def has_backward(self) -> bool:
        """Whether a recording has figures of lines in backward."""
        return any(function.has_backward for function in self.functions)

    def without_source(self) -> LineReport:
        """Return the report without source text; itself if it has none."""
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
