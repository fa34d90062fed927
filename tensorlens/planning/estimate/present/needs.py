"""Sentences on an estimate and on a largest batch, the same for text and HTML.

What grows with the batch has its share of every instant. With more items another instant may be the
highest: an optimizer's step hardly grows, forward and backward do. Each instant is a line over the
number of items; what is needed is the highest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorlens.planning.estimate.present.peak_parts import PeakPart, kinds_by_row
from tensorlens.planning.estimate.result import Estimate, Fit, LargestBatch, Range, Verdict
from tensorlens.planning.estimate.simulation import block_changes
from tensorlens.recording.moments import Resident
from tensorlens.recording.present.instants import mark_before
from tensorlens.records.events import ALLOC
from tensorlens.render.figures import size
from tensorlens.render.source import place, printable

SETUP = "setup"
"""Part before the first mark."""


_CALLS = {
    "torch": ("torch.cuda.max_memory_allocated()", "torch.cuda.max_memory_reserved()"),
    "tensorflow": ("get_memory_info('GPU:0')['peak']", "regions of the BFC allocator"),
}
"""Framework to what tells the two peaks of a real run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures that a person asks for."""

    label: str
    nbytes: Range
    meaning: str
    """A few words, for where there is room."""
    sign: str = ""
    """``+`` and ``=`` where it goes on from the figure before it."""

    @property
    def shown(self) -> str:
        """The label with its sign."""
        return f"{self.sign} {self.label}" if self.sign else self.label


@dataclass(frozen=True, slots=True)
class Rung:
    """One line of a sum that can be checked by hand."""

    sign: str
    """Its sign: empty for the first, ``+``, ``-``, and ``=`` for the sum so far."""
    label: str
    nbytes: int


def largest_batch(found: LargestBatch | None) -> str:
    """Return which batch is the largest that fits, in one line; empty where it was not asked."""
    if found is None:
        return ""
    capacity = size(found.capacity)
    needed = "" if found.next_needed is None else size(found.next_needed)
    if not found.batch:
        return f"not even a batch of {found.next_batch:,} fits into {capacity}: it needs {needed}"
    answer = f"the largest batch that fits into {capacity} is {found.batch:,}"
    if found.is_limit:
        return f"{answer}, the largest that was tried"
    if found.next_batch is None:
        return answer
    return f"{answer}; {found.next_batch:,} would need {needed}"


def title(estimate: Estimate) -> str:
    """Return what was estimated for which device."""
    what = "Approximate estimate" if estimate.approximate else "Estimate"
    program = f": {printable(estimate.program)}" if estimate.program else ""
    return f"{what} for {printable(estimate.device)}{program}"


def conditions(estimate: Estimate) -> tuple[tuple[str, str], ...]:
    """Return what the estimate is true for: card, settings of the allocator, versions."""
    card = estimate.card
    found = []
    if card is not None:
        capability = ".".join(map(str, card.capability))
        memory = f"{size(card.memory)}{' by its data sheet' if card.is_nominal else ''}"
        text = f"{printable(card.name)}, {memory}, compute capability {capability}"
        found.append(("card", text))
    if estimate.settings:
        found.append(("allocator", printable(estimate.settings)))
    if estimate.versions:
        versions = (f"{name} {version}" for name, version in estimate.versions.items())
        found.append(("versions", printable(", ".join(versions))))
    return tuple(found)


def spread(nbytes: Range) -> str:
    """Return ``9.61 GiB (9.40 GiB to 9.93 GiB)``, or one figure where the bounds read alike."""
    low, point, high = size(nbytes.low), size(nbytes.point), size(nbytes.high)
    return point if low == high else f"{point} ({low} to {high})"


def judged(estimate: Estimate) -> Fit | None:
    """Return whether it fits: into what was asked, else into the card's whole memory."""
    return None if estimate.capacity is None and estimate.card is None else estimate.fits()


def verdict(estimate: Estimate) -> str:
    """Return the answer in one line: whether it fits, what it needs, what is left or lacks."""
    needed, fit = estimate.needed, judged(estimate)
    unsimulated = estimate.unsimulated
    if unsimulated:
        needed = Range.exactly(needed.point)
    if fit is None:
        text = f"needs {spread(needed)}"
        return f"likely {text}; {unsimulated}: no bounds are known" if unsimulated else text
    where = size(fit.capacity)
    if estimate.capacity is None:
        where = f"the card's {where}"
    spare = fit.capacity - needed.point
    if fit.verdict == Verdict.FITS:
        return f"fits into {where}: needs {spread(needed)}, {size(spare)} to spare"
    if fit.verdict == Verdict.TIGHT and unsimulated:
        return (
            f"likely fits into {where}: needs {spread(needed)}, {size(spare)} to spare;"
            f" {unsimulated}: no bounds are known"
        )
    if fit.verdict == Verdict.TIGHT:
        return (
            f"tight in {where}: likely needs {size(needed.point)}, {size(spare)} to spare,"
            f" but may need up to {size(needed.high)}"
        )
    return f"does not fit into {where}: needs {spread(needed)}, {size(-spare)} short"


def figures(estimate: Estimate) -> tuple[Figure, ...]:
    """Return the figures that are asked for first.

    They are the allocator's two peaks, what a tool that watches the card sees, and the sum that
    decides whether it fits.
    """
    if estimate.card is None:
        found: tuple[Figure, ...] = (
            Figure("peak allocated", estimate.allocated, "in tensors and in kernels"),
        )
    else:
        found = _of_card(estimate)
    if estimate.unsimulated:
        return tuple(replace(each, nbytes=Range.exactly(each.nbytes.point)) for each in found)
    return found


def _of_card(estimate: Estimate) -> tuple[Figure, ...]:
    outside = f"outside of {estimate.framework}"
    allocated, reserved = _CALLS.get(estimate.framework, _CALLS["torch"])
    return (
        Figure("peak allocated", estimate.allocated, allocated),
        Figure("peak reserved", estimate.reserved, reserved),
        Figure("allocator total", estimate.taken, "reserved + kernels: nvidia-smi less context"),
        Figure("minimum that fits", estimate.least_capacity, "reserved, without unused cache"),
        Figure(outside, estimate.apart, "CUDA context, loaded kernels", "+"),
        Figure("required on the card", estimate.needed, "decides whether it fits", "="),
    )


def rungs(estimate: Estimate, parts: Mapping[str, PeakPart]) -> Iterator[Rung]:
    """Give the sum from the parts of the peak up to required on the card.

    It adds up to the byte: to the peaks of what is allocated and reserved, to the least capacity,
    and with the terms outside of torch to what is needed.
    """
    for number, part in enumerate(parts.values()):
        yield _signed(part.nbytes, part.label, first=not number)
    yield Rung("=", "allocated at the peak", estimate.peak_allocated)
    if estimate.card is None and not estimate.apart.high:
        return
    cached = estimate.peak_reserved - estimate.peak_allocated
    if cached:
        yield _signed(cached, "held in segments beyond that")
    yield Rung("=", "reserved at the peak", estimate.peak_reserved)
    given_back = estimate.least_capacity.point - estimate.peak_reserved
    if given_back:
        label = "cached, returned when needed" if given_back < 0 else "up to whole segments"
        yield _signed(given_back, label)
        yield Rung("=", "minimum that fits", estimate.least_capacity.point)
    for term in estimate.terms:
        if term.apart and term.nbytes.high:
            yield _signed(term.nbytes.point, printable(term.name))
    yield Rung("=", "required on the card", estimate.needed.point)


def peak_block(estimate: Estimate) -> Resident | None:
    """Return the block whose allocation made the peak."""
    log, row = estimate.recording.log, estimate.peak_row
    if not 0 <= row < len(log) or log.kind[row] != ALLOC:
        return None
    (block,) = estimate.recording.blocks((row,))
    return block


def peak_step(estimate: Estimate) -> str:
    """Return the step that the peak is in: ``step 2``, or :data:`SETUP`."""
    mark = mark_before(estimate.recording.marks, estimate.peak_row)
    return SETUP if mark is None else printable(mark.name)


def peak_place(estimate: Estimate) -> str:
    """Return where the peak is: ``in backward of step 2, at train.py:12 in step, in fc1``."""
    step, block = peak_step(estimate), peak_block(estimate)
    when = "while model and data are made" if step == SETUP else f"in {step}"
    if block is None:
        return when
    if step != SETUP and block.phase != "other":
        when = f"in {printable(block.phase)} of {step}"
    line = block.charged or block.born
    where = [f"at {place(line, function=True)}"] if line else []
    where += [f"in {printable(block.module)}"] if block.module else []
    where += [f"for {printable(block.op)}"] if block.op else []
    return ", ".join([when, *where])


def _signed(nbytes: int, label: str, *, first: bool = False) -> Rung:
    return Rung("-" if nbytes < 0 else "" if first else "+", label, abs(nbytes))


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

    def an_item(self, instant: Instant) -> int:
        """Return what each further item costs while an instant is the highest."""
        return instant.growing // self.batch

    def begins(self, instant: Instant) -> int:
        """Return from how many items on an instant is the highest."""
        ratios = (
            (each.fixed - instant.fixed) / (instant.growing - each.growing)
            for each in self.instants
            if each.growing < instant.growing
        )
        return int(self.batch * max(ratios, default=1.0)) + 1

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
    found = estimate.recording.once(question, lambda: _growing(estimate))
    if not found or not found[-1].growing:
        return None
    return Growth(estimate.batch, found, estimate.needed.point - estimate.peak_allocated)


def _growing(estimate: Estimate) -> tuple[Instant, ...]:
    """Return the instants, of those that grow by the same the highest."""
    log, kinds = estimate.recording.log, kinds_by_row(estimate)
    held = growing = 0
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
    return tuple(outer)
