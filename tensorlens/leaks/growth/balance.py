"""The figures after each step, by line and by device, without what is known to stay behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensorlens.frameworks.base import UNKNOWN, LeftBlocks
from tensorlens.leaks.growth.samples import LoopSamples
from tensorlens.leaks.report import Balance, Growth, GrowthKind, Leak


@dataclass(frozen=True, slots=True)
class KnownGrowth:
    """Growth that is explained."""

    addresses: set[int] = field(default_factory=set)
    """Blocks that are there from the step that made them on."""
    births: set[int] = field(default_factory=set)
    """Lines of which everything is known."""


@dataclass(frozen=True, slots=True)
class Levels:
    """How much of a line there is, without what is explained.

    Before the first judged step and after each: without the last, which may be in use, and at the
    end without what the last step freed.
    """

    all_blocks: tuple[int, ...]
    """After the last step too."""
    all_nbytes: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many blocks."""
        return _to_the_end(self.all_blocks)

    @property
    def nbytes(self) -> tuple[int, ...]:
        """How many bytes."""
        return _to_the_end(self.all_nbytes)

    @property
    def blocks_growth(self) -> int:
        """By how many blocks it grew in all."""
        return self.blocks[-1] - self.blocks[0]

    @property
    def growth(self) -> int:
        """By how many bytes it grew in all."""
        return self.nbytes[-1] - self.nbytes[0]


def total(several: Sequence[Levels]) -> Levels:
    """Return the sum of the levels of some lines."""
    blocks = zip(*(each.all_blocks for each in several), strict=True)
    nbytes = zip(*(each.all_nbytes for each in several), strict=True)
    return Levels(tuple(map(sum, blocks)), tuple(map(sum, nbytes)))


def residue(
    watched: LoopSamples, left: LeftBlocks | None, explained: KnownGrowth
) -> dict[int, Levels]:
    """Return what of the figures is not explained, by the number of the line.

    A block that lives at the end lived after each step since its own. What the last step makes may
    be in use, and is left out; what it frees has not stayed: the collector may have run in it.

    Args:
        watched: the steps.
        left: what lives at the end; None if nobody counts.
        explained: what is known.
    """
    figures = watched.figures[watched.warmup :]
    count = len(figures)
    blocks: dict[int, list[int]] = {}
    nbytes: dict[int, list[int]] = {}
    for birth, step, taken in _known(left, explained):
        first = max(0, step + 1 - watched.warmup)
        if first < count:
            blocks.setdefault(birth, [0] * count)[first] += 1
            nbytes.setdefault(birth, [0] * count)[first] += taken
    lines: dict[int, Levels] = {}
    for birth in {birth for each in figures for birth in each.lines} - explained.births:
        series = [each.lines.get(birth, (0, 0)) for each in figures]
        numbers = _less([number for number, _ in series], blocks.get(birth))
        sizes = _less([size for _, size in series], nbytes.get(birth))
        lines[birth] = Levels(numbers, sizes)
    return lines


def _known(left: LeftBlocks | None, explained: KnownGrowth) -> Iterator[tuple[int, int, int]]:
    if left is None:
        return
    rows = zip(left.address, left.birth, left.step, left.taken, strict=True)
    for address, birth, step, taken in rows:
        if step >= 0 and address in explained.addresses and birth not in explained.births:
            yield birth, step, taken


def _less(levels: list[int], added: list[int] | None) -> tuple[int, ...]:
    """Return levels without what was added at each place and stayed."""
    if added is None:
        return tuple(levels)
    found, known = [], 0
    for level, more in zip(levels, added, strict=True):
        known += more
        found.append(level - known)
    return tuple(found)


def _to_the_end(levels: Sequence[int]) -> tuple[int, ...]:
    """Return levels without the last step's, the one before it less what that freed."""
    return (*levels[:-2], min(levels[-2:]))


def balance(
    watched: LoopSamples,
    leaks: Sequence[tuple[float, Leak]],
    others: Sequence[tuple[float, Growth]],
) -> dict[str, Balance]:
    """Return the balance of each device whose allocated bytes are known.

    Args:
        watched: the steps.
        leaks: what grows without a bound, each with how many bytes the allocator's figures count
            for one that was asked for.
        others: what else was found, by the blocks that are left.
    """
    first, last = watched.figures[watched.warmup].allocated, watched.figures[-2].allocated
    steps = watched.span.steps
    found = {}
    for device, level in last.items():
        before = first.get(device, 0)
        if UNKNOWN in (level, before):
            continue
        mine = [(taken, leak.bytes_per_step) for taken, leak in leaks if leak.device == device]
        lost = round(steps * sum(nbytes for _, nbytes in mine))
        kinds = {}
        for kind in (GrowthKind.GARBAGE, GrowthKind.FILLING):
            own = [
                (taken, other.bytes_per_step)
                for taken, other in others
                if other.device == device and other.kind == kind
            ]
            kinds[kind] = round(steps * sum(nbytes for _, nbytes in own))
            mine += own
        rounding = round(steps * sum((taken - 1) * nbytes for taken, nbytes in mine))
        garbage, filling = kinds[GrowthKind.GARBAGE], kinds[GrowthKind.FILLING]
        rest = level - before - lost - garbage - filling - rounding
        found[device] = Balance(
            steps=steps,
            growth=level - before,
            leaks=lost,
            garbage=garbage,
            filling=filling,
            rounding=rounding,
            unknown=max(0, rest),
            freed=max(0, -rest),
        )
    return found
