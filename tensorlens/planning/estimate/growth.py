"""What an estimate needs with another batch: the highest of all instants of the run.

With more items another instant may be the highest: an optimizer's step hardly grows, forward and
backward do. Each instant is a line over the number of items; what is needed is the highest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.planning.estimate.peak_parts import kinds_by_row
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.simulation import block_changes


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant that is the highest for some number of items."""

    row: int
    fixed: int
    """Bytes that do not grow."""
    growing: int
    """Bytes that grow in proportion, with the items that were run."""

    def at(self, ratio: float) -> float:
        """Return the bytes allocated with so many times the items."""
        return self.fixed + self.growing * ratio


@dataclass(frozen=True, slots=True)
class BatchGrowth:
    """Bytes as a function of the number of items: the highest of all instants of the run."""

    batch: int
    instants: Sequence[Instant]
    """From the peak on, by how much they grow; one that another one hides for good is left out."""
    besides: int
    """Bytes needed beyond those allocated at the peak."""

    def highest(self, batch: int) -> Instant:
        """Return the instant that is the highest with so many items."""
        return max(self.instants, key=lambda each: (each.at(batch / self.batch), each.growing))

    def needed(self, batch: int) -> int:
        """Return about what so many items would need."""
        return round(self.highest(batch).at(batch / self.batch)) + self.besides

    def begins(self, instant: Instant) -> int:
        """Return from how many items on an instant is the highest."""
        ratios = (
            (each.fixed - instant.fixed) / (instant.growing - each.growing)
            for each in self.instants
            if each.growing < instant.growing
        )
        return int(self.batch * max(ratios, default=1.0)) + 1


def batch_growth(estimate: Estimate) -> BatchGrowth | None:
    """Return how it grows; None where there is no batch or nothing that grows with it."""
    if not estimate.batch:
        return None
    log, kinds = estimate.recording.log, kinds_by_row(estimate)
    held = growing = 0
    # of those that grow by the same the highest
    found: dict[int, Instant] = {}
    for row, made, nbytes in block_changes(log, estimate.device):
        held += nbytes
        if kinds[made].grows:
            growing += log.size[made] if nbytes > 0 else -log.size[made]
        before = found.get(growing)
        if row == made and (before is None or before.fixed < held - growing):
            found[growing] = Instant(row, held - growing, growing)
    # in the order of their growth, each lower than the one before, from the peak on
    outer: list[Instant] = []
    for each in sorted(found.values(), key=lambda each: each.growing):
        while outer and outer[-1].at(1) <= each.at(1):
            outer.pop()
        outer.append(each)
    if not outer or not outer[-1].growing:
        return None
    return BatchGrowth(estimate.batch, outer, estimate.needed.point - estimate.peak_allocated)
