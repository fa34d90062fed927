"""Questions to a recording: one instant, the backward pass by forward line, growth, churn.

Sizes are exact bytes, times nanoseconds since the recording began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorlens.records.logs.events import Phase
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True)
class Resident:
    """One block that was handed out at an instant."""

    row: int
    """The row of its allocation in the log."""
    name: str
    """The census's name where one saw it, else where it was made: ``fc1: aten::linear``."""
    role: str
    """One of :data:`tensorlens.roles.BLOCK_ROLES`."""
    known: bool
    """Whether a census named it; else name and role follow from what ran when it was made."""
    device: str
    nbytes: int
    born: SourceLine | None
    """The innermost line of the user's code that allocated it."""
    charged: SourceLine | None
    """The line it is counted for: ``born``, or the forward line whose backward made it."""
    module: str | None
    op: str | None
    phase: Phase
    age_ns: int | None
    """How long it had been there; None where that was before the recording."""
    stack: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    model_line: SourceLine | None = None
    """The line of the model that made it, where the model's code is a library's: the innermost that
    ``charged`` calls."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Resident memory of one device at one instant; the sums of each kind are ``bytes``."""

    device: str
    bytes: int
    row: int
    """The event after which it was so; -1 for what was there before the first event."""
    time_ns: int
    tensors: Sequence[Resident]
    """Largest first."""
    by_line: Mapping[SourceLine | None, int]
    by_role: Mapping[str, int]
    by_module: Mapping[str | None, int]
    by_stack: Mapping[int, int]
    by_phase: Mapping[str, int]
    held: int | None = None
    """The allocator's own count, remainders it did not split off included; None where
    that is not known."""
    reserved: int | None = None
    """Bytes it held from the driver at that instant; None where that is not known."""
    dropped: bool = False
    """Whether its event was dropped: its blocks are in a log of their own."""
    by_model_line: Mapping[tuple[SourceLine | None, SourceLine], int] = field(default_factory=dict)
    """Of ``by_line``, what lines of models of a library made, by the user's line and that one."""
    reached: int = 1
    """Of a peak, how many times the bytes rose to it; it is the first of them."""


@dataclass(frozen=True, slots=True)
class BackwardCost:
    """Cost of a forward line in backward, on all devices or one."""

    line: SourceLine | None
    """None gathers what no line is known of."""
    nbytes: int
    """Bytes handed out while the nodes that the line made ran, each block once."""
    blocks: int
    kept: int
    """Of it, what outlived the backward pass: gradients of parameters, mostly."""
    peak: int
    """The most of it that was resident at once."""
    gradients: Mapping[str, int]
    """Of it, gradients that were named: parameter to bytes."""
    nodes: Mapping[str, int]
    """Autograd node, or recomputed operator, to bytes."""
    model_lines: Mapping[SourceLine, int] = field(default_factory=dict)
    """Of it, what goes back to lines of models of a library that the line calls."""


@dataclass(frozen=True, slots=True)
class LineGrowth:
    """How much more was resident of one line at the end than at the beginning of a span."""

    line: SourceLine | None
    role: str
    nbytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Churn:
    """How much was handed out for what was resident, both by the events that were kept."""

    device: str
    handed_out: int
    allocations: int
    peak: int
    by_line: Mapping[SourceLine | None, int]
    """Bytes handed out."""

    @property
    def ratio(self) -> float:
        """Bytes handed out per byte resident at the peak; 0.0 where nothing was."""
        return self.handed_out / self.peak if self.peak else 0.0


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """How well the allocator's segments were used at the end of the recording."""

    device: str
    reserved: int
    held: int
    """Bytes of blocks that were handed out, remainders included."""
    requested: int
    free: int
    largest_free: int
    inactive_split: int
    """Free, in segments that are partly in use: what ``empty_cache()`` cannot give back."""
    segments: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes resident over time, thinned out to what a picture can show; the peak is kept."""

    device: str
    times: Sequence[int]
    rows: Sequence[int]
    """The event after which each point was so."""
    totals: Sequence[int]
    by_role: Mapping[str, Sequence[int]]
    """The same per role; at each point they add up to ``totals``."""
    reserved: Sequence[int] | None
    peak: int
    """Number of the point that is the peak."""
    events: int
    """How many events the points stand for."""
