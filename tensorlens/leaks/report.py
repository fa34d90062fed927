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
    """How memory grows that has no bound."""

    LEAK = "leak"
    """Each step leaves something behind that nothing takes away."""
    GARBAGE = "garbage, the collector is off"
    """Only reference cycles hold it, and nobody collects them."""
    QUEUE = "queue that fills"
    """Everything is taken away some steps later, but more comes than goes."""


class GrowthKind(StrEnum):
    """Why something that grew is no leak of tensors, or none for sure."""

    FILLING = "filling"
    """A container with a bound that it has not reached."""
    TURNOVER = "turnover"
    """As much is freed in each step as is made: nothing grows."""
    GARBAGE = "garbage"
    """It waits for the collector, which runs."""
    RESERVED = "reserved"
    """The allocator's cache."""
    GRAPH = "graph"
    """Memory of the host that nodes of autograd's graph explain: a leak keeps them, or one tensor
    does, whose graph gets deeper."""
    UNKNOWN = "unknown"
    """It climbed in the loop, and nothing that is there at the verdict explains it."""
    HOST = "host"
    """Memory of the host that holds no tensors."""
    UNCLEAR = "unclear"
    """More steps would tell."""


class Certainty(StrEnum):
    """How sure it is that something is a leak."""

    CERTAIN = "certain"
    LIKELY = "likely"
    UNCLEAR = "unclear"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Example:
    """One of the tensors that are kept, the latest, or the one that all of them hang below."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    storage_nbytes: int
    grad_fn: str | None
    """The autograd node that made it: what it keeps alive is counted in ``below``."""
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
    """By how much a device's allocated memory grew in the steps that are judged, and in what.

    ``growth == leaks + garbage + filling + rounding + unknown - freed``, in bytes over all of
    ``steps``; nothing but ``growth`` is ever negative.
    """

    steps: int
    """How many: after the warm-up, without the last, which may be in use."""
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
    """The line that made them. Of what hangs below one tensor that is replaced in each step, a sum
    that goes on or a hidden state, it is the line that makes that tensor: there it has to be
    detached. Where the tensor itself is older, it is the line that made most of the bytes."""
    tensors_per_step: float
    """Those that something refers to, or where only a graph keeps them, those that it keeps."""
    bytes_per_step: float
    """With what hangs below them."""
    path: str
    """The shortest path that holds them; empty where none could be found."""
    paths: tuple[ReferencePath, ...]
    """All paths that hold the example: cutting one alone is not enough."""
    role: str
    device: str
    example: Example | None
    certainty: Certainty
    """``certain`` or ``likely``; ``reason`` says why."""
    reason: str
    advice: str | None = None
    """Advice on it; None when it is not sure."""
    source: str = ""
    """The text of ``born``."""
    kind: LeakKind = LeakKind.LEAK
    below: tuple[BelowLine, ...] = ()
    """Part of ``bytes_per_step`` that hangs below, by the line that made it, most bytes first."""
    nodes_per_step: float = 0.0
    """Nodes of autograd's graph that they keep; their host memory is not in ``bytes_per_step``."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Something else that grew, and why it is no leak of tensors."""

    kind: GrowthKind
    text: str
    """One line: what grew, how much a step, why it is in this class."""
    bytes_per_step: float
    path: str = ""
    device: str = ""
    """Empty where it is no memory of tensors."""


@dataclass(frozen=True, slots=True)
class LeakReport(Document):
    """The verdict on some steps; true in a boolean sense where there is or may have been a leak.

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
    """How many were watched, without the warm-up."""
    warmup: int
    allocated: dict[str, tuple[int, ...]]
    """Device to the bytes allocated after each step, or every ``stride`` steps, warm-up included.
    """
    verdict: str
    """One line."""
    notes: tuple[str, ...] = ()
    provenance: str = "measured"
    stride: int = 1
    """After how many steps each a long loop was looked at."""
    balance: dict[str, Balance] = field(default_factory=dict)
    """By device, of those whose allocated bytes are known."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    def without_source(self) -> LeakReport:
        """Return it without the text of the lines: itself where there is none."""
        below = (each.source for leak in self.leaks for each in leak.below)
        if not any((*(leak.source for leak in self.leaks), *below)):
            return self
        leaks = (
            replace(leak, source="", below=tuple(replace(each, source="") for each in leak.below))
            for leak in self.leaks
        )
        return replace(self, leaks=tuple(leaks))

    def __bool__(self) -> bool:
        # what climbed and is freed now may have leaked
        kinds = (GrowthKind.UNKNOWN, GrowthKind.GRAPH)
        return bool(self.leaks) or any(each.kind in kinds for each in self.others)

    def __repr__(self) -> str:
        if not self.leaks:
            return f"<LeakReport: {self.verdict}>"
        first = self.leaks[0]
        held = f", held by {first.path}" if first.path else ""
        return f"<LeakReport: {self.verdict}; made at {place_of(first.born)}{held}>"


def place_of(line: SourceLine | None) -> str:
    """Return where a line is, and in which function."""
    return "a line that is not known" if line is None else place(line, function=True)


def source_of(line: SourceLine | None) -> str:
    """Return what a line says; nothing where its file cannot be read."""
    return "" if line is None else linecache.getline(line.filename, line.lineno).strip()
