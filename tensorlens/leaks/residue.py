"""What of the figures after each step is not explained by what is known to stay behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensorlens.frameworks.base import UNKNOWN, Left
from tensorlens.leaks.watched import Watched


@dataclass(frozen=True, slots=True)
class Explained:
    """What is known to grow."""

    addresses: set[int] = field(default_factory=set)
    """Blocks that are there from the step that made them on."""
    births: set[int] = field(default_factory=set)
    """Lines of which everything is known."""


@dataclass(frozen=True, slots=True)
class Levels:
    """How many blocks and bytes of a line there are, before the first judged step and after each.

    Without those that are explained, and at the end without what the last step freed.
    """

    blocks: tuple[int, ...]
    nbytes: tuple[int, ...]

    @property
    def blocks_growth(self) -> int:
        """By how many blocks it grew in all."""
        return self.blocks[-1] - self.blocks[0]

    @property
    def growth(self) -> int:
        """By how many bytes it grew in all."""
        return self.nbytes[-1] - self.nbytes[0]


@dataclass(frozen=True, slots=True)
class Residue:
    """What is not explained, by the number of the line, and of each device."""

    lines: Mapping[int, Levels]
    devices: Mapping[str, tuple[int, ...]]
    """Bytes; not of devices where a figure could not be had."""


def total(several: list[Levels]) -> Levels:
    """Return the sum of the levels of some lines."""
    blocks = zip(*(each.blocks for each in several), strict=True)
    nbytes = zip(*(each.nbytes for each in several), strict=True)
    return Levels(tuple(map(sum, blocks)), tuple(map(sum, nbytes)))


def residue(watched: Watched, left: Left | None, explained: Explained) -> Residue:
    """Return what of the figures is not explained.

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
    lines, known = dict[int, Levels](), dict[str, list[int]]()
    births = {birth for each in figures for birth in each.lines}
    for birth in births:
        series = [each.lines.get(birth, (0, 0)) for each in figures]
        rest: Sequence[int] = (0,) * count
        if birth not in explained.births:
            rest = _less([size for _, size in series], nbytes.get(birth))
            numbers = _less([number for number, _ in series], blocks.get(birth))
            lines[birth] = Levels(_to_the_end(numbers), _to_the_end(rest))
        sums = known.setdefault(watched.steps.device(birth), [0] * count)
        for place, (_, size) in enumerate(series):
            sums[place] += size - rest[place]
    return Residue(lines, dict(_of_devices(watched, known)))


def _known(left: Left | None, explained: Explained) -> Iterator[tuple[int, int, int]]:
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


def _of_devices(
    watched: Watched, known: Mapping[str, list[int]]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    figures = watched.figures[watched.warmup :]
    for device in watched.figures[-1].allocated:
        series = [each.allocated.get(device, 0) for each in figures]
        if UNKNOWN not in series:
            explained = known.get(device, [0] * len(series))
            rest = [a - b for a, b in zip(series, explained, strict=True)]
            yield device, _to_the_end(rest)


def _to_the_end(levels: Sequence[int]) -> tuple[int, ...]:
    """Return levels without the last step's, the one before it less what that freed."""
    return (*levels[:-2], min(levels[-2:]))
