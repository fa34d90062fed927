"""The leak report: growth from step to step, the line that made it and its holders.

Sizes are bytes. A figure "per step" is what one step leaves behind, averaged over the steps that
were watched after the warm-up.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.references import ReferencePath
from tensorlens.records.run import Run, current_run
from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import place


class LeakKind(StrEnum):
    """Kind of growth without a bound."""

    LEAK = "leak"
    """Each step leaves tensors behind that are never freed."""
    GARBAGE = "garbage, the collector is off"
    """Only reference cycles hold the tensors, and nothing collects them."""
    QUEUE = "queue that fills"
    """Tensors are freed some steps later, but more are made than freed."""


class GrowthKind(StrEnum):
    """Reason why growth is no leak of tensors, or not surely one."""

    FILLING = "filling"
    """A container has a bound that it has not reached."""
    TURNOVER = "turnover"
    """As much is freed in each step as is made."""
    GARBAGE = "garbage"
    """It waits for the collector, which is on."""
    RESERVED = "reserved"
    """The allocator's cache grew."""
    GRAPH = "graph"
    """Host memory of nodes of autograd's graph, kept by a leak or by one tensor whose graph gets
    deeper."""
    UNKNOWN = "unknown"
    """It climbed in the loop, and nothing that is there at the verdict explains it."""
    HOST = "host"
    """Host memory without tensors."""
    UNCLEAR = "unclear"
    """More steps are needed."""


class Certainty(StrEnum):
    """Certainty that something is a leak."""

    CERTAIN = "certain"
    LIKELY = "likely"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Example:
    """The latest of the kept tensors, or the tensor that all of them hang below."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    storage_nbytes: int
    grad_fn: str | None
    """The autograd node that made it, whose memory is counted in ``below``."""
    age: int
    """Steps since it was made."""
    below: int = 0
    """Bytes that autograd's graph keeps alive because of it alone."""
    below_tensors: int = 0


@dataclass(frozen=True, slots=True)
class BelowLine:
    """Memory below the kept tensors that one line made: saved activations, gradients."""

    born: SourceLine | None
    bytes_per_step: float
    tensors_per_step: float
    role: str
    source: str = ""
    """The text of ``born``."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Growth of a device's allocated memory in the judged steps, and its parts.

    ``growth == leaks + garbage + filling + rounding + unknown - freed``, in bytes over all of
    ``steps``; nothing but ``growth`` is ever negative.
    """

    steps: int
    """Number of judged steps: after the warm-up, without the last, which may be in use."""
    growth: int
    leaks: int
    """Bytes in :attr:`LeakReport.leaks`: the sum of their ``bytes_per_step``, times ``steps``."""
    garbage: int = 0
    """Bytes that wait for the collector."""
    filling: int = 0
    """Caches and other containers with a bound."""
    rounding: int = 0
    """Bytes that an accelerator's allocator adds to the requests of all of these."""
    unknown: int = 0
    """The rest: in use at the end, made once, or not understood."""
    freed: int = 0
    """Bytes freed that were there before the steps."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Tensors of one line that stay behind, step after step."""

    born: SourceLine | None
    """The line that made them. If they hang below one tensor that is replaced in each step, such as
    a running sum or a hidden state, it is the line that makes that tensor, which has to be detached
    there. If that tensor is older, it is the line that made most of the bytes."""
    tensors_per_step: float
    """Tensors that something refers to, or that a graph keeps if nothing else does."""
    bytes_per_step: float
    """Bytes a step, with the memory below them."""
    path: str
    """The shortest path that holds them; empty if none was found."""
    paths: tuple[ReferencePath, ...]
    """All paths that hold the example: cutting one alone is not enough."""
    role: str
    device: str
    example: Example | None
    certainty: Certainty
    """``certain`` or ``likely``; ``reason`` says why."""
    reason: str
    advice: str | None = None
    """What to do; None if that is not sure."""
    source: str = ""
    """The text of ``born``."""
    kind: LeakKind = LeakKind.LEAK
    below: tuple[BelowLine, ...] = ()
    """Part of ``bytes_per_step`` that hangs below, by the line that made it, most bytes first."""
    nodes_per_step: float = 0.0
    """Nodes of autograd's graph that they keep; their host memory is not in ``bytes_per_step``."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Other growth, and why it is no leak of tensors."""

    kind: GrowthKind
    text: str
    """One line: what grew, its rate, and the reason for its kind."""
    bytes_per_step: float
    path: str = ""
    device: str = ""
    """Empty if it is no memory of tensors."""


@dataclass(frozen=True, slots=True)
class LeakReport(Document):
    """The verdict on the steps of a loop; true if there is, or may have been, a leak.

    As a table: one row per leak.
    """

    SCHEMA: ClassVar[str] = "tensorlens.leaks"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "leak report"
    PRESENTER: ClassVar[str] = "tensorlens.leaks.present"

    leaks: tuple[Leak, ...]
    others: tuple[Growth, ...]
    """Other growth that is no leak, with the reason."""
    steps: int
    """Number of watched steps, without the warm-up."""
    warmup: int
    allocated: dict[str, tuple[int, ...]]
    """Bytes allocated after each step, or every ``stride`` steps, by device; with the warm-up."""
    verdict: str
    """One line."""
    notes: tuple[str, ...] = ()
    provenance: str = "measured"
    stride: int = 1
    """Number of steps between two figures of a long loop."""
    balance: dict[str, Balance] = field(default_factory=dict)
    """Balance of each device whose allocated bytes are known."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    def without_source(self) -> LeakReport:
        """Return the report without the text of lines; itself if it has none."""
        below = (each.source for leak in self.leaks for each in leak.below)
        if not any((*(leak.source for leak in self.leaks), *below)):
            return self
        leaks = (
            replace(leak, source="", below=tuple(replace(each, source="") for each in leak.below))
            for leak in self.leaks
        )
        return replace(self, leaks=tuple(leaks))

    def __bool__(self) -> bool:
        # memory that climbed and is freed now may have leaked
        kinds = (GrowthKind.UNKNOWN, GrowthKind.GRAPH)
        return bool(self.leaks) or any(each.kind in kinds for each in self.others)

    def __repr__(self) -> str:
        if not self.leaks:
            return f"<LeakReport: {self.verdict}>"
        first = self.leaks[0]
        held = f", held by {first.path}" if first.path else ""
        return f"<LeakReport: {self.verdict}; made at {place_of(first.born)}{held}>"


def place_of(line: SourceLine | None) -> str:
    """Return the file, number and function of a line."""
    return "a line that is not known" if line is None else place(line, function=True)


def source_of(line: SourceLine | None) -> str:
    """Return the text of a line; empty if its file cannot be read."""
    return "" if line is None else linecache.getline(line.filename, line.lineno).strip()
