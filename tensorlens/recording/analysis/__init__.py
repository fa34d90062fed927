"""Answers of a recording: one instant, backward by forward line, growth, churn, a timeline.

The modules here compute them: pure functions of a recording, without any framework. Sizes are
exact bytes, times nanoseconds since the recording began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorlens.records.logs.events import Phase
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True)
class Resident:
    """A block resident at an instant."""

    row: int
    """Row of its allocation in the log."""
    name: str
    """Name from a census, or its origin: ``fc1: aten::linear``."""
    role: str
    """One of :data:`tensorlens.roles.BLOCK_ROLES`."""
    known: bool
    """Whether a census named it; otherwise name and role follow from its origin."""
    device: str
    nbytes: int
    born: SourceLine | None
    """The innermost line of the user's code that allocated it."""
    charged: SourceLine | None
    """Line that its bytes count for: ``born``, or the forward line whose backward made it."""
    module: str | None
    op: str | None
    phase: Phase
    age_ns: int | None
    """Nanoseconds since its allocation; None if that was before the recording."""
    stack: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    model_line: SourceLine | None = None
    """Line of a library's model that made it: the innermost that ``charged`` calls."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory of a device at an instant; each mapping but ``by_model_line`` adds up to ``bytes``."""

    device: str
    bytes: int
    row: int
    """Row of the event that led to it; -1 for the state before the first event."""
    time_ns: int
    tensors: Sequence[Resident]
    """Largest first."""
    by_line: Mapping[SourceLine | None, int]
    by_role: Mapping[str, int]
    by_module: Mapping[str | None, int]
    by_stack: Mapping[int, int]
    by_phase: Mapping[str, int]
    held: int | None = None
    """The allocator's own count, with remainders it did not split off; None if unknown."""
    reserved: int | None = None
    """Bytes it held from the driver at that instant; None if unknown."""
    dropped: bool = False
    """Whether its event was dropped; its blocks are then in a log of their own."""
    by_model_line: Mapping[tuple[SourceLine | None, SourceLine], int] = field(default_factory=dict)
    """Part of ``by_line`` made by lines of a library's models, by the user's line and theirs."""
    reached: int = 1
    """Of a peak, how many times the bytes rose to it; the moment is the first of them."""


@dataclass(frozen=True, slots=True)
class BackwardCost:
    """Cost of a forward line in backward, on all devices or one."""

    line: SourceLine | None
    """None gathers the cost of unknown lines."""
    nbytes: int
    """Bytes allocated while the nodes that the line made ran, each block once."""
    blocks: int
    kept: int
    """Bytes of it that outlived the backward pass: gradients of parameters, mostly."""
    peak: int
    """Highest bytes of it resident at once."""
    gradients: Mapping[str, int]
    """Named gradients among it: parameter to bytes."""
    nodes: Mapping[str, int]
    """Autograd node, or recomputed operator, to bytes."""
    model_lines: Mapping[SourceLine, int] = field(default_factory=dict)
    """Bytes of it by line of a library's model that the line calls."""


@dataclass(frozen=True, slots=True)
class LineGrowth:
    """Growth of the resident bytes of one line and role over a span."""

    line: SourceLine | None
    role: str
    nbytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Churn:
    """Bytes allocated against bytes resident, both by the events that were kept."""

    device: str
    handed_out: int
    allocations: int
    peak: int
    by_line: Mapping[SourceLine | None, int]
    """Bytes allocated."""

    @property
    def ratio(self) -> float:
        """Bytes allocated per byte resident at the peak; 0.0 if nothing was resident."""
        return self.handed_out / self.peak if self.peak else 0.0


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Use of the allocator's segments at the end of the recording."""

    device: str
    reserved: int
    held: int
    """Bytes of blocks in use, remainders included."""
    requested: int
    free: int
    largest_free: int
    inactive_split: int
    """Free bytes in segments partly in use, which ``empty_cache()`` cannot give back."""
    segments: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes resident over time, thinned out for a picture; the peak is kept."""

    device: str
    times: Sequence[int]
    rows: Sequence[int]
    """Row of the event that led to each point."""
    totals: Sequence[int]
    by_role: Mapping[str, Sequence[int]]
    """Bytes of each role; at each point they add up to ``totals``."""
    reserved: Sequence[int] | None
    peak: int
    """Number of the point that is the peak."""
    events: int
    """Number of events that the points stand for."""
