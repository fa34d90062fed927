"""One look at the end of some steps: what of them is left, and which lines have ever more alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorlens.frameworks.base import LeftBlocks
from tensorlens.leaks.growth.balance import KnownGrowth, Levels, residue
from tensorlens.leaks.growth.groups import Group, HeldBlock, LeftBlock, candidates, grouped, sampled
from tensorlens.leaks.growth.growth_test import CERTAIN, UNCLEAR, climbs, may_climb
from tensorlens.leaks.growth.populations import drifts, populations
from tensorlens.leaks.growth.replacement import grown_lines
from tensorlens.leaks.growth.retained import RetainedGroup, described
from tensorlens.leaks.growth.samples import LoopSamples
from tensorlens.leaks.report import Growth

_MOST_BLOCKS = 20_000
"""Blocks whose holders are looked for; of more, some of each line and size."""
_MOST_GROUPS = 20
"""Groups whose paths are searched for, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The groups of blocks that steps left behind."""

    found: list[RetainedGroup]
    left: LeftBlocks | None
    """All that lives of the steps; None if nobody counts."""
    explained: KnownGrowth
    """Growth that the groups explain."""
    rest: dict[int, Levels]
    """Growth that they do not explain, by the number of the line."""
    unseen: int = 0
    """How many groups grew besides, the smallest, which nobody has looked at."""
    unseen_bytes_per_step: float = 0.0

    @property
    def grew_otherwise(self) -> bool:
        """Whether more of a line lives than the groups explain."""
        return any(levels.growth > 0 for levels in self.rest.values())


def inspect_steps(watched: LoopSamples) -> Inspection:
    """Return what is left of each of the steps."""
    left = watched.steps.left(0)
    if left is None:
        return Inspection([], None, KnownGrowth(), {})
    blocks, places, chosen = sampled(candidates(left, watched.span), _MOST_BLOCKS)
    found: list[RetainedGroup] = []
    groups: list[Group] = []
    # who holds what takes a look at the heap
    if chosen:
        holdings = watched.steps.holdings([block.address for block in chosen])
        survivors = [holdings.survivors[place] for place in places]
        groups = grouped(blocks, survivors, watched.span)
        groups = [each for each in groups if _may_grow(each, groups, watched)]
        groups.sort(key=lambda group: -group.nbytes)
        found = described(groups[:_MOST_GROUPS], holdings, left, watched)
        del survivors, holdings
    known = frozenset(block.birth for group in groups for block in group.blocks)
    unseen = [group.judgement.bytes_per_step for group in groups[_MOST_GROUPS:]]
    unseen_births = {birth for group in groups[_MOST_GROUPS:] for birth in group.births}
    del groups
    found += _replaced(watched, left, known)
    found, rest = _without_consumed(watched, left, found)
    explained = _explained(found)
    explained.births.update(unseen_births)
    if len(chosen) < len(blocks):
        # of what hangs below the others nothing is known
        explained.births.update(block.birth for block in blocks)
    rest = {birth: rest[birth] for birth in rest.keys() - explained.births}
    return Inspection(found, left, explained, rest, len(unseen), sum(unseen))


def inspect_again(
    watched: LoopSamples, seen: Inspection, dead: frozenset[int]
) -> tuple[list[RetainedGroup], list[Growth]]:
    """Return the groups with the populations that grow, and the lines that may.

    Args:
        watched: the steps.
        seen: the first look.
        dead: the addresses that the collector has freed since.
    """
    if seen.left is None:
        return seen.found, []
    explained = KnownGrowth(seen.explained.addresses | dead, set(seen.explained.births))
    rest = residue(watched, seen.left, explained) if dead else seen.rest
    growing, births = populations(watched, seen.left, explained, rest)
    found = [each for each in seen.found if each.is_explained or each.birth not in births]
    told = births.union(each.birth for each in found if not each.is_explained)
    return found + growing, drifts(watched, seen.left, explained, rest, told)


def _may_grow(group: Group, groups: Sequence[Group], watched: LoopSamples) -> bool:
    """Tell whether the figures of a group's lines let it grow.

    What only some of the steps left may be a state that is made late, or the pipeline of a new
    epoch in place of that of the last: the lines have then risen once, or gained less than half of
    what is left of all their groups. So have all lines together where what they replace was made
    elsewhere: weights that the model's own line had made.
    """
    if group.judgement.certainty != UNCLEAR:
        return True
    figures = [each.lines for each in watched.figures[watched.warmup : -1]]
    levels = [sum(each.get(birth, (0, 0))[1] for birth in group.births) for each in figures]
    everything = [sum(nbytes for _, nbytes in each.values()) for each in figures]
    left = sum(
        block.size
        for each in groups
        for block in each.blocks
        if each.judgement.certainty != CERTAIN
        and block.birth in group.births
        and block.step in watched.judged
    )
    gained = min(levels[-1] - levels[0], everything[-1] - everything[0])
    return 2 * gained >= left and may_climb(levels)


def _without_consumed(
    watched: LoopSamples, left: LeftBlocks, found: list[RetainedGroup]
) -> tuple[list[RetainedGroup], dict[int, Levels]]:
    """Drop groups of which much has been taken away: they are judged as populations.

    Something of each step is left, but the less the earlier it was. Returns the others, and what
    they do not explain.
    """
    lines = residue(watched, left, _explained(found))
    whole = residue(watched, None, KnownGrowth())

    def is_consumed(each: RetainedGroup) -> bool:
        if each.is_replaced or each.below or not each.is_explained or each.birth not in lines:
            return False
        counts = Counter(block.step for block in each.blocks)
        is_even = len({counts[step] for step in watched.judged}) == 1
        is_freed = lines[each.birth].blocks_growth < 0
        return is_freed and not is_even and climbs(whole[each.birth].blocks)

    others = [each for each in found if not is_consumed(each)]
    is_same = len(others) == len(found)
    return others, lines if is_same else residue(watched, left, _explained(others))


def _explained(found: Sequence[RetainedGroup]) -> KnownGrowth:
    explained = KnownGrowth()
    for each in found:
        if each.is_replaced:
            explained.births.add(each.birth)
        elif each.is_explained:
            explained.addresses.update(block.address for block in each.blocks)
            explained.addresses.update(each.below_blocks)
    return explained


def _replaced(watched: LoopSamples, left: LeftBlocks, known: frozenset[int]) -> list[RetainedGroup]:
    """Return lines whose one block is replaced by a larger one in each step."""
    grown = grown_lines(watched, known)
    largest: dict[int, int] = {}
    for row, birth in enumerate(left.birth):
        if birth in grown and (birth not in largest or left.size[largest[birth]] < left.size[row]):
            largest[birth] = row
    blocks = [
        LeftBlock(left.address[row], left.size[row], birth, left.step[row])
        for birth, row in largest.items()
    ]
    if not blocks:
        return []
    holdings = watched.steps.holdings([block.address for block in blocks])
    groups = [
        Group([HeldBlock(block, survivor)], grown[block.birth])
        for block, survivor in zip(blocks, holdings.survivors, strict=True)
    ]
    return [
        replace(each, is_replaced=True, is_renewed=False, bounds=())
        for each in described(groups[:_MOST_GROUPS], holdings, left, watched)
    ]
