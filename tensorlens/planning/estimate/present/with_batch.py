"""What an estimate would be with more items in the batch, as far as one run can tell.

What grows with the batch has its share of every instant. With more items another instant may be
the highest: an optimizer's step hardly grows, forward and backward do. Each instant is a line over
the number of items; what is needed is the highest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.planning.estimate.present.peak_parts import kinds_by_row
from tensorlens.planning.estimate.result import Estimate
from tensorlens.records.events import FREE

FAR = 16
"""Beyond so many times the items that were run a line through one run is only a hint."""


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
class Growth:
    """The instants that are the highest in turn from the run's batch on."""

    batch: int
    instants: Sequence[Instant]
    """The less an instant grows the earlier it comes; the first is the peak."""
    besides: int
    """What is needed beyond what is allocated at the peak."""

    @property
    def last(self) -> Instant:
        """The instant that is the highest with very many items."""
        return self.instants[-1]

    def highest(self, batch: int) -> Instant:
        """Return the instant that is the highest with so many items."""
        return max(self.instants, key=lambda each: (each.at(batch / self.batch), each.growing))

    def needed(self, batch: int) -> int:
        """Return about what so many items would need."""
        return round(self.highest(batch).at(batch / self.batch)) + self.besides

    def an_item(self, instant: Instant) -> int:
        """Return what each further item costs while an instant is the highest."""
        return instant.growing // self.batch

    def begins(self, instant: Instant) -> int:
        """Return from how many items on an instant is the highest."""
        place = self.instants.index(instant)
        if not place:
            return self.batch
        before = self.instants[place - 1]
        ratio = (before.fixed - instant.fixed) / (instant.growing - before.growing)
        return int(self.batch * ratio) + 1

    def room(self, capacity: int) -> int | None:
        """Return about how many items fit; None where nothing grows."""
        room = capacity - self.besides
        found = [
            (room - each.fixed) * self.batch // each.growing
            for each in self.instants
            if each.growing
        ]
        return min(found, default=None)


def growth(estimate: Estimate) -> Growth | None:
    """Return how it grows; None where there is no batch or nothing that grows with it."""
    if not estimate.batch:
        return None
    question = "with the batch", estimate.device, estimate.terms
    found = estimate.recording.once(question, lambda: _outermost(_levels(estimate)))
    if not found or not found[-1].growing:
        return None
    return Growth(estimate.batch, found, estimate.needed.point - estimate.peak_allocated)


def _levels(estimate: Estimate) -> list[Instant]:
    """Return what was allocated after each allocation."""
    log, kinds = estimate.recording.log, kinds_by_row(estimate)
    held = growing = 0
    found = []
    for row, (kind, pair) in enumerate(zip(log.kind, log.pair, strict=True)):
        if row in kinds:
            held += log.held.get(row, log.size[row])
            growing += log.size[row] if kinds[row].grows else 0
            found.append(Instant(row, held - growing, growing))
        elif kind == FREE and pair in kinds:
            held -= log.held.get(pair, log.size[pair])
            growing -= log.size[pair] if kinds[pair].grows else 0
    return found


def _outermost(instants: Sequence[Instant]) -> tuple[Instant, ...]:
    """Return those that are the highest of all for some ratio from 1 on, in their order."""
    found: list[Instant] = []
    for each in sorted(instants, key=lambda each: (each.growing, each.at(1))):
        while found and found[-1].at(1) <= each.at(1):
            found.pop()
        while len(found) > 1 and _is_hidden(found[-2], found[-1], each):
            found.pop()
        found.append(each)
    return tuple(found)


def _is_hidden(before: Instant, middle: Instant, after: Instant) -> bool:
    """Tell whether ``after`` outgrows ``before`` no later than ``middle`` does."""
    late = (before.fixed - after.fixed) * (middle.growing - before.growing)
    return late <= (before.fixed - middle.fixed) * (after.growing - before.growing)
