"""Growth of lines that is not explained by blocks which are known to stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import sub

from tensorlens.leaks.growth.growth_test import Judgement, growing
from tensorlens.leaks.watched_loop import LoopSamples

_MIN_EXACT_FIGURES = 4
"""Figures with the bytes asked for that are needed to know whether something grows."""


@dataclass(frozen=True, slots=True)
class KnownGrowth:
    """Growth that is explained."""

    addresses: set[int] = field(default_factory=set)
    """Addresses of blocks that live from the step that made them on."""
    births: set[int] = field(default_factory=set)
    """Numbers of lines whose whole growth is explained."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of a line, without its explained blocks.

    One level before the first judged step and one after each judged step. Blocks that the last
    step made are left out, since they may be in use; those it freed are subtracted.
    """

    all_blocks: tuple[int, ...]
    """Numbers of blocks, after the last step too."""
    all_nbytes: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Numbers of blocks."""
        return _without_last(self.all_blocks)

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes."""
        return _without_last(self.all_nbytes)

    @property
    def blocks_growth(self) -> int:
        """Number of blocks by which it grew in all."""
        return self.blocks[-1] - self.blocks[0]

    @property
    def growth(self) -> int:
        """Bytes by which it grew in all."""
        return self.nbytes[-1] - self.nbytes[0]


def total(several: Sequence[Levels]) -> Levels:
    """Return the sum of the levels of some lines."""
    blocks = zip(*(each.all_blocks for each in several), strict=True)
    nbytes = zip(*(each.all_nbytes for each in several), strict=True)
    return Levels(tuple(map(sum, blocks)), tuple(map(sum, nbytes)))


def unexplained(watched: LoopSamples, explained: KnownGrowth) -> dict[int, Levels]:
    """Return the levels of each line without its explained blocks.

    A block that lives at the end lived after each step since its own.
    """
    warmup = watched.span.warmup
    figures = watched.figures[warmup:]
    births = {birth for each in figures for birth in each.lines} - explained.births
    numbers = {birth: [0] * len(figures) for birth in births}
    sizes = {birth: [0] * len(figures) for birth in births}
    for each in watched.left:
        first = max(0, each.step + 1 - warmup)
        is_known = each.address in explained.addresses and each.birth in births
        if is_known and first < len(figures):
            numbers[each.birth][first] += 1
            sizes[each.birth][first] += each.rounded_size
    found = {}
    for birth in births:
        count, nbytes = zip(*(each.lines.get(birth, (0, 0)) for each in figures), strict=True)
        blocks = tuple(map(sub, count, accumulate(numbers[birth])))
        found[birth] = Levels(blocks, tuple(map(sub, nbytes, accumulate(sizes[birth]))))
    return found


def _without_last(levels: Sequence[int]) -> tuple[int, ...]:
    """Return levels without the last, the one before it reduced by memory that the last freed."""
    return (*levels[:-2], min(levels[-2:]))


def grown_lines(watched: LoopSamples, known: frozenset[int]) -> dict[int, Judgement]:
    """Return the lines that have as many blocks after each step, but more bytes."""
    span = watched.span
    figures = watched.figures[span.warmup + 1 :]
    exact = [(step, each.asked) for step, each in enumerate(figures) if each.asked is not None]
    grown = _grown_in([each.lines for each in figures], known, span.stride)
    if not exact:
        return grown
    # an accelerator's allocator rounds sizes up
    device = watched.steps.device
    exactly_grown = _grown_in([asked for _, asked in exact], known, span.stride)
    steps = exact[-1][0] - exact[0][0]
    few = len(exact) < _MIN_EXACT_FIGURES
    found = {birth: each for birth, each in grown.items() if few or device(birth) == "cpu"}
    for birth, judgement in exactly_grown.items():
        rate = judgement.bytes_per_step * (len(exact) - 1) / steps
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
