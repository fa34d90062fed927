"""Inspection of the blocks that are left at the end of a watch, and of lines that may grow."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tensorlens.frameworks.retention import LeftBlock
from tensorlens.guards import is_from_a_handler, reason
from tensorlens.interpreter import paused_collector
from tensorlens.leaks.growth.groups import Group, candidates, groups_of, left_by_step
from tensorlens.leaks.growth.growth_test import CERTAIN, UNCLEAR, climbs, judge, may_climb
from tensorlens.leaks.growth.populations import drifts, populations
from tensorlens.leaks.growth.retained import Fate, RetainedGroup, RetainedMemory
from tensorlens.leaks.growth.unexplained import KnownGrowth, Levels, grown_lines, unexplained
from tensorlens.leaks.report import Growth
from tensorlens.leaks.watched_loop import LoopSamples, WatchedLoop

_MAX_GROUPS = 20
"""Groups whose paths are searched for, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Groups of blocks that steps left behind, and growth of lines."""

    found: list[RetainedGroup]
    growth: list[Growth]
    """Lines that may grow although no single block stays behind."""
    skipped: list[float]
    """Bytes a step of the smallest groups, which were not looked at."""
    notes: list[str]
    is_blind: bool
    """Whether no framework reports single blocks."""


@dataclass(slots=True)
class _Look:
    """The groups of blocks that steps left behind in one framework."""

    watched: LoopSamples
    found: list[RetainedGroup]
    explained: KnownGrowth
    """Growth that the groups explain."""
    rest: dict[int, Levels]
    """Levels that the groups do not explain, by the number of the line."""
    skipped: list[float]
    """Bytes a step of the groups that were not looked at."""


def inspect(loop: WatchedLoop) -> Inspection:
    """Return the groups of blocks that the steps left, and the lines that may grow.

    The collector runs once, and only if something grew without a known holder and if the program
    lets it run at all. Blocks that it frees are garbage and no leak.
    """
    notes: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        """Let one of several frameworks fail with a note; pause the collector meanwhile."""
        try:
            # it might free blocks that are about to be looked at
            with paused_collector():
                yield
        except Exception as error:
            if is_from_a_handler(error) or len(loop.parts) == 1:
                raise
            notes.append(f"{name}: what its steps left behind could not be told: {reason(error)}")

    looks: dict[str, _Look] = {}
    for name, watched in loop.parts.items():
        with noted(name):
            left = watched.steps.left()
            if left is not None:
                looks[name] = _look(replace(watched, left=left))
    freed_by_look = _collect([*looks.values()])
    skipped = [each for look in looks.values() for each in look.skipped]
    found: list[RetainedGroup] = []
    growth: list[Growth] = []
    for (name, look), freed in zip(looks.items(), freed_by_look, strict=True):
        groups = look.found
        with noted(name):
            groups, more = _populations(look, freed)
            growth += more
        found += (_without_garbage(each, freed) for each in groups)
    return Inspection(found, growth, skipped, notes, is_blind=not looks)


def _look(watched: LoopSamples) -> _Look:
    blocks = candidates(watched.left, watched.span)
    found: list[RetainedGroup] = []
    groups: list[Group] = []
    if blocks:
        memory = RetainedMemory(watched, blocks)
        groups = groups_of(memory.held, watched.span)
        groups = [each for each in groups if _may_grow(each, groups, watched)]
        groups.sort(key=lambda group: -group.nbytes)
        found = memory.describe(groups[:_MAX_GROUPS])
        del memory
    births = [each.births.keys() for each in groups]
    skipped = [each.judgement.bytes_per_step for each in groups[_MAX_GROUPS:]]
    del groups
    found += _replaced(watched, frozenset().union(*births))
    found = _without_consumed(watched, found)
    explained = _explained(found)
    explained.births.update(*births[_MAX_GROUPS:])
    return _Look(watched, found, explained, unexplained(watched, explained), skipped)


def _collect(looks: Sequence[_Look]) -> list[set[int]]:
    """Run the collector if it matters; return the addresses that it has freed, for each look.

    It does not run if the program keeps it off: cycles are then judged as leaks without it.
    """
    is_known = all(
        all(each.is_held for each in look.found)
        and not any(levels.growth > 0 for levels in look.rest.values())
        for look in looks
    )
    if is_known or not looks[0].watched.span.is_collected:
        return [set() for _ in looks]
    gc.collect()
    freed = []
    for look in looks:
        before, after = look.watched.left, look.watched.steps.left() or ()
        freed.append({each.address for each in before} - {each.address for each in after})
    return freed


def _populations(look: _Look, freed: set[int]) -> tuple[list[RetainedGroup], list[Growth]]:
    """Return the groups, with populations that grow, and the lines that may grow."""
    watched = look.watched
    explained = KnownGrowth(look.explained.addresses | freed, set(look.explained.births))
    rest = unexplained(watched, explained) if freed else look.rest
    growing, births = populations(watched, explained, rest)
    found = [each for each in look.found if each.is_explained or each.birth not in births]
    told = births.union(each.birth for each in found if not each.is_explained)
    return found + growing, drifts(watched, explained, rest, told)


def _without_garbage(found: RetainedGroup, freed: set[int]) -> RetainedGroup:
    """Judge a group without holders again, by the blocks that the collector has left."""
    watched = found.watched
    if found.is_held:
        return found
    if not watched.span.is_collected:
        is_garbage = found.cycle is not None and found.fate is not Fate.RENEWED
        return replace(found, fate=Fate.GARBAGE) if is_garbage else found
    left = [block for block in found.blocks if block.address not in freed]
    judgement = judge(left_by_step(left), watched.span)
    if len(left) == len(found.blocks):
        # no cycle holds it: the collector has run
        return replace(found, cycle=None)
    if left and found.fate in (Fate.REPLACED, Fate.CONSUMED):
        return found
    if judgement is None:
        return replace(found, fate=Fate.GARBAGE)
    below = found.bytes_per_step - found.judgement.bytes_per_step
    nbytes = judgement.bytes_per_step + below
    # all memory below the group stays counted
    return replace(found, judgement=judgement, bytes_per_step=nbytes)


def _may_grow(group: Group, groups: Sequence[Group], watched: LoopSamples) -> bool:
    """Return whether the figures of a group's lines let it grow.

    Blocks that only some steps left may be a state made late, or the pipeline of a new epoch. They
    grow only if their lines gained at least half of the bytes that are left of them, and rose more
    than once. All lines together must have gained as much too: the blocks may replace those of
    another line, such as the weights of a model.
    """
    if group.judgement.certainty != UNCLEAR:
        return True
    figures = [each.lines for each in watched.figures[watched.span.warmup : -1]]
    levels = [sum(each.get(birth, (0, 0))[1] for birth in group.births) for each in figures]
    everything = [sum(nbytes for _, nbytes in each.values()) for each in figures]
    left = sum(
        block.size
        for each in groups
        for block in each.held
        if each.judgement.certainty != CERTAIN
        and block.birth in group.births
        and block.step in watched.span.judged
    )
    gained = min(levels[-1] - levels[0], everything[-1] - everything[0])
    return 2 * gained >= left and may_climb(levels)


def _without_consumed(watched: LoopSamples, found: list[RetainedGroup]) -> list[RetainedGroup]:
    """Drop groups that lost blocks: they are judged as populations.

    Of such a group blocks of each step are left, but fewer of earlier steps.
    """
    lines = unexplained(watched, _explained(found))
    levels = unexplained(watched, KnownGrowth())

    def is_consumed(each: RetainedGroup) -> bool:
        if each.fate is not Fate.KEPT or each.below or not each.is_explained:
            return False
        counts = Counter(block.step for block in each.blocks)
        is_even = len({counts[step] for step in watched.span.judged}) == 1
        is_freed = each.birth in lines and lines[each.birth].blocks_growth < 0
        return is_freed and not is_even and climbs(levels[each.birth].blocks)

    return [each for each in found if not is_consumed(each)]


def _explained(found: Sequence[RetainedGroup]) -> KnownGrowth:
    explained = KnownGrowth()
    for each in found:
        if each.fate is Fate.REPLACED:
            explained.births.add(each.birth)
        elif each.is_explained:
            explained.addresses.update(block.address for block in each.blocks)
            explained.addresses.update(each.below_blocks)
    return explained


def _replaced(watched: LoopSamples, known: frozenset[int]) -> list[RetainedGroup]:
    """Return a group for each line whose block is replaced by a larger one in each step."""
    grown = grown_lines(watched, known)
    largest: dict[int, LeftBlock] = {}
    for each in watched.left:
        if each.birth in grown:
            other = largest.setdefault(each.birth, each)
            largest[each.birth] = max(other, each, key=lambda block: block.size)
    if not largest:
        return []
    memory = RetainedMemory(watched, [*largest.values()])
    groups = [Group([each], grown[each.birth]) for each in memory.held]
    return [
        replace(found, fate=Fate.REPLACED, bounds=())
        for found in memory.describe(groups[:_MAX_GROUPS])
    ]
