"""Samples of a loop: the figures after each step, and of lines and devices how they grew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import sub

from tensorlens.frameworks.base import UNKNOWN, LeftBlocks, StepFigures, Steps
from tensorlens.leaks.growth.groups import Group
from tensorlens.leaks.growth.growth_test import Judgement, WatchedSteps, growing, is_renewed
from tensorlens.leaks.host.samples import HostSample
from tensorlens.leaks.loop_steps import LoopSteps
from tensorlens.leaks.report import Balance, Growth, GrowthKind, Leak
from tensorlens.records.references import ReferencePath

_ENOUGH_LOOKS = 4
"""Looks at what was asked for after which it is known whether something grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFigures:
    """Figures of a loop.

    In a long loop several steps are looked at as one: a stretch. Everything is numbered by them.
    """

    figures: tuple[StepFigures, ...]
    """Before the first stretch, and after each one."""
    made: int
    """How many steps ended, the warm-up included."""
    warmup_steps: int
    """How many of them are warm-up."""
    stride: int
    """How many steps a stretch has."""
    is_collected: bool
    """Whether the collector is on, or has run since the warm-up."""

    @property
    def count(self) -> int:
        """How many stretches were watched, the warm-up included."""
        return len(self.figures) - 1

    @property
    def warmup(self) -> int:
        """How many stretches have some of the warm-up."""
        return -(-self.warmup_steps // self.stride)

    @property
    def span(self) -> WatchedSteps:
        """Which stretches were watched."""
        return WatchedSteps(self.count, self.warmup, self.stride)

    @property
    def judged(self) -> range:
        """The stretches that are judged."""
        return self.span.judged

    def allocated(self, device: str) -> list[int]:
        """Return the allocated bytes of a device from the end of the warm-up on."""
        return [each.allocated.get(device, 0) for each in self.figures[self.warmup :]]

    def reserved(self, device: str) -> list[int]:
        """Return the reserved bytes of a device from the end of the warm-up on."""
        return [each.reserved.get(device, 0) for each in self.figures[self.warmup :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSamples(LoopFigures):
    """Samples of a loop in one framework."""

    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLoop(LoopFigures):
    """Samples of a loop: the figures are those of all frameworks."""

    steps: LoopSteps
    parts: Mapping[str, LoopSamples]
    """By framework."""
    host: Sequence[HostSample]
    host_now: Callable[[], HostSample]
    """Takes one more sample."""


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
    births = {birth for each in figures for birth in each.lines} - explained.births
    numbers = {birth: [0] * len(figures) for birth in births}
    sizes = {birth: [0] * len(figures) for birth in births}
    if left is not None:
        rows = zip(left.address, left.birth, left.step, left.taken, strict=True)
        for address, birth, step, taken in rows:
            first = max(0, step + 1 - watched.warmup)
            is_known = step >= 0 and address in explained.addresses and birth in births
            if is_known and first < len(figures):
                numbers[birth][first] += 1
                sizes[birth][first] += taken
    found = {}
    for birth in births:
        count, nbytes = zip(*(each.lines.get(birth, (0, 0)) for each in figures), strict=True)
        blocks = tuple(map(sub, count, accumulate(numbers[birth])))
        found[birth] = Levels(blocks, tuple(map(sub, nbytes, accumulate(sizes[birth]))))
    return found


def _to_the_end(levels: Sequence[int]) -> tuple[int, ...]:
    """Return levels without the last step's, the one before it less what that freed."""
    return (*levels[:-2], min(levels[-2:]))


def balance(
    watched: LoopFigures,
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


def frees_as_much(group: Group, paths: Sequence[ReferencePath], watched: LoopSamples) -> bool:
    """Tell whether as many tensors are freed in each step as are made."""
    figures = [each.lines for each in watched.figures[watched.warmup : -1]]
    births, expected = group.births, len(steps_of(group, watched.judged))
    levels = [sum(each.get(birth, (0, 0))[0] for birth in births) for each in figures]
    if is_renewed(levels, expected):
        return True
    if not _has_older(group, paths):
        return False
    mine = [sum(each.get(birth, (0, 0))[1] for birth in births) for each in figures]
    for birth in set(figures[0]).difference(births):
        other = [each.get(birth, (0, 0))[1] for each in figures]
        both = [first + second for first, second in zip(mine, other, strict=True)]
        if other[-1] < other[0] and is_renewed(both, expected):
            return True
    return False


def _has_older(group: Group, paths: Sequence[ReferencePath]) -> bool:
    """Tell whether a container holds more than what the steps have put into it.

    A ring that was filled elsewhere does.
    """
    return any((each.length or 0) > len(group.held) + 1 for w in paths for each in w.references)


def steps_of(group: Group, steps: range) -> set[int]:
    """Return those of the steps that have left blocks of a group."""
    return {block.step for block in group.blocks if block.step in steps}


def grown_lines(watched: LoopSamples, known: frozenset[int]) -> dict[int, Judgement]:
    """Return the lines that have as many blocks after each step, but more bytes."""
    figures = watched.figures[watched.warmup + 1 :]
    looks = [(step, each.asked) for step, each in enumerate(figures) if each.asked is not None]
    grown = _grown_in([each.lines for each in figures], known, watched.stride)
    if not looks:
        return grown
    # an accelerator's allocator rounds: what was asked for is known where it was looked at
    device = watched.steps.device
    exact = _grown_in([asked for _, asked in looks], known, watched.stride)
    steps = looks[-1][0] - looks[0][0]
    few = len(looks) < _ENOUGH_LOOKS
    found = {birth: each for birth, each in grown.items() if few or device(birth) == "cpu"}
    for birth, judgement in exact.items():
        rate = judgement.bytes_per_step * (len(looks) - 1) / steps
        found[birth] = replace(judgement, bytes_per_step=rate)
    return found


def _grown_in(
    figures: Sequence[Mapping[int, tuple[int, int]]], known: frozenset[int], stride: int
) -> dict[int, Judgement]:
    grown: dict[int, Judgement] = {}
    for birth in figures[-1] if len(figures) > 1 else ():
        if birth < 0 or birth in known:
            continue
        counts, levels = zip(*(each.get(birth, (0, 0)) for each in figures), strict=True)
        judgement = growing(levels, stride)
        if judgement is not None and max(counts) == min(counts):
            grown[birth] = judgement
    return grown
