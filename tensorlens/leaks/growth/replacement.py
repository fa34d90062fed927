"""Lines that free what they make: as much in each step, or one block for a larger one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorlens.leaks.growth.groups import Group
from tensorlens.leaks.growth.growth_test import Judgement, growing, is_renewed
from tensorlens.leaks.growth.samples import LoopSamples
from tensorlens.records.references import ReferencePath

_ENOUGH_LOOKS = 4
"""Looks at what was asked for after which it is known whether something grows."""


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
