"""Populations: ever more live blocks of a line, or larger ones, none of which stays behind."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorlens.frameworks.retention import LeftBlock
from tensorlens.heap.paths import reference_paths
from tensorlens.leaks.growth.containers import bounds_of, container_path
from tensorlens.leaks.growth.groups import Group, latest_of, left_by_step, name_key
from tensorlens.leaks.growth.growth_test import (
    CERTAIN,
    UNCLEAR,
    Judgement,
    climbs,
    judge,
    may_climb,
    may_enlarge,
)
from tensorlens.leaks.growth.retained import Fate, RetainedGroup, RetainedMemory
from tensorlens.leaks.growth.unexplained import KnownGrowth, Levels, total
from tensorlens.leaks.report import Certainty, Growth, GrowthKind, place_of
from tensorlens.leaks.watched_loop import LoopSamples
from tensorlens.records.references import ReferencePath
from tensorlens.units import format_bytes

_MAX_LINES = 3
"""Lines that are told, those that grew most."""


@dataclass(slots=True, eq=False)
class _Population:
    """Blocks that one container holds, with the blocks below them."""

    held: list[LeftBlock] = field(default_factory=list)
    below: list[LeftBlock] = field(default_factory=list)
    is_below: bool = False

    def steps(self) -> set[int]:
        """Return the steps that made the blocks that the container holds."""
        return {each.step for each in self.held}

    def bytes_of(self, birth: int) -> int:
        return sum(each.size for each in (*self.held, *self.below) if each.birth == birth)


def populations(
    watched: LoopSamples, explained: KnownGrowth, all_lines: Mapping[int, Levels]
) -> tuple[list[RetainedGroup], set[int]]:
    """Return the populations that grow or may grow, and the lines that make them.

    They are judged by the line that makes them and the container that holds them: the queue whose
    reader is slower than its writer. A population is called unclear only if it holds blocks of more
    than one judged step: if all are freed in the next step, only the number made in a step varies.

    Args:
        watched: the samples.
        explained: blocks that stay behind in each step, which are no population.
        all_lines: levels that are not explained, by the number of the line.
    """
    lines = {
        birth: levels
        for birth, levels in all_lines.items()
        if birth >= 0 and levels.blocks_growth > 0 and levels.growth > 0
    }
    shrinking = [levels for levels in all_lines.values() if levels.blocks_growth < 0]
    several = [*lines.values()]
    if not several or not any(map(_climb_certainty, (*several, total(several)))):
        return [], set()
    blocks = [
        each
        for each in watched.left
        if each.birth in lines and each.address not in explained.addresses
    ]
    memory = RetainedMemory(watched, blocks)
    found, births = [], set[int]()
    for population, paths in _by_container(_alike(memory.held)):
        own = {birth: lines[birth] for birth in lines if _is_most(population, birth, blocks)}
        if not own:
            continue
        levels = total([*own.values()])
        certainty = _climb_certainty(levels, shrinking)
        is_kept = len(population.steps() & set(watched.span.judged)) > 1
        if certainty == CERTAIN or (certainty == UNCLEAR and is_kept):
            each = _describe(population, paths, own, certainty, memory)
            found.append(
                _judged_as_leak(each, [b for b in blocks if b.birth in own], levels, watched)
            )
            births |= own.keys()
    return found, births


def _judged_as_leak(
    found: RetainedGroup, blocks: Sequence[LeftBlock], levels: Levels, watched: LoopSamples
) -> RetainedGroup:
    """Judge lines as a leak if each step left as much as they grew by: nothing was freed.

    An example is a state that is carried on while a cache holds its graph, too.
    """
    left = left_by_step(blocks)
    judgement = judge(left, watched.span)
    kept = sum(left[step].tensors for step in watched.span.judged if step in left)
    if judgement is None or judgement.certainty != CERTAIN or kept != levels.blocks_growth:
        return found
    known = replace(found.judgement, certainty=CERTAIN, reason=judgement.reason)
    return replace(found, judgement=known, fate=Fate.KEPT)


def _climb_certainty(levels: Levels, shrinking: Sequence[Levels] = ()) -> Certainty | None:
    """Judge whether ever more blocks live, also in sum with any one of the ``shrinking`` lines."""
    several = [levels, *(total([levels, each]) for each in shrinking)]
    if all(climbs(each.blocks) for each in several):
        return CERTAIN
    return UNCLEAR if all(may_climb(each.blocks) for each in several) else None


def _is_most(population: _Population, birth: int, blocks: Sequence[LeftBlock]) -> bool:
    """Return whether a population has more than half of the bytes that are left of a line."""
    everything = sum(each.size for each in blocks if each.birth == birth)
    return 2 * population.bytes_of(birth) > everything


def _alike(held: Sequence[LeftBlock]) -> list[_Population]:
    """Return populations by line and beginning of the name, with the blocks below them."""
    itself = [each for each in held if not each.survivor.is_below]
    by_name = name_key(itself)
    found: dict[Hashable, _Population] = {}
    owner: dict[int, _Population] = {}
    for each in itself:
        population = found.setdefault(by_name(each), _Population())
        population.held.append(each)
        owner.update(dict.fromkeys(map(id, each.survivor.tensors), population))
    for each in (block for block in held if block.survivor.is_below):
        holders = [id(holder.item) for holder in each.survivor.holders]
        above = next((owner[item] for item in holders if item in owner), None)
        if above is not None:
            above.below.append(each)
        else:
            label = type(each.survivor.item), each.birth
            found.setdefault(label, _Population(is_below=True)).held.append(each)
    return [*found.values()]


def _by_container(
    several: Sequence[_Population],
) -> list[tuple[_Population, list[ReferencePath]]]:
    """Merge populations that one container holds; return them with the paths to their latest."""
    # together: each call reads the heap once
    paths = reference_paths([latest_of(each.held).survivor.item for each in several])
    merged: dict[Hashable, tuple[_Population, list[ReferencePath]]] = {}
    for each, own in zip(several, paths, strict=True):
        label = (each.is_below, *container_path(own[0])) if own else id(each)
        known, _ = merged.setdefault(label, (_Population(is_below=each.is_below), own))
        known.held += each.held
        known.below += each.below
    return [*merged.values()]


def _describe(
    population: _Population,
    paths: list[ReferencePath],
    lines: dict[int, Levels],
    certainty: Certainty,
    memory: RetainedMemory,
) -> RetainedGroup:
    steps = memory.watched.span.judged_steps
    levels = total([*lines.values()])
    own = {each.birth for each in population.held} & lines.keys()
    tensors = sum(lines[birth].blocks_growth for birth in own or lines)
    first, last = levels.blocks[0], levels.blocks[-1]
    reason = f"each is freed some steps later, but {first:,} were there and {last:,} are now"
    judgement = Judgement(certainty, tensors / steps, levels.growth / steps, reason)
    group = Group(population.held, judgement, population.is_below)
    roles = {each.birth: each.survivor.role for each in reversed(population.below)}
    below = tuple(
        memory.below_line(
            birth, each.growth / steps, each.blocks_growth / steps, roles.get(birth, "other")
        )
        for birth, each in sorted(lines.items(), key=lambda pair: -pair[1].growth)
        if birth not in own
    )
    found = memory.describe_one(group, paths, bounds_of([group], [paths])[0])
    # its bytes are those of the allocator's figures
    return replace(found, fate=Fate.CONSUMED, below=below, rounding_factor=1.0, nodes=0.0)


def drifts(
    watched: LoopSamples,
    explained: KnownGrowth,
    rest: Mapping[int, Levels],
    told: Collection[int],
) -> list[Growth]:
    """Return the lines that have as many blocks but more bytes, those that grew most first.

    Args:
        watched: the samples.
        explained: growth that is known.
        rest: levels that are not explained, by the number of the line.
        told: lines whose growth is told already.
    """
    latest: dict[int, LeftBlock] = {}
    for each in watched.left:
        before = latest.get(each.birth)
        is_known = each.birth in told or each.address in explained.addresses
        if not is_known and each.step >= (before.step + 1 if before else watched.span.warmup):
            latest[each.birth] = each
    found = {
        birth: rest[birth]
        for birth in latest
        if birth in rest and may_enlarge(rest[birth].blocks, rest[birth].nbytes)
    }
    ordered = sorted(found, key=lambda birth: -found[birth].growth)[:_MAX_LINES]
    if not ordered:
        return []
    held = RetainedMemory(watched, [latest[birth] for birth in ordered]).held
    paths = reference_paths([each.survivor.item for each in held])
    return [
        _growth(watched, birth, found[birth], own)
        for birth, own in zip(ordered, paths, strict=True)
    ]


def _growth(watched: LoopSamples, birth: int, levels: Levels, paths: list[ReferencePath]) -> Growth:
    rate = levels.growth / watched.span.judged_steps
    where = place_of(watched.steps.line(birth))
    before, now = map(format_bytes, (levels.nbytes[0], levels.nbytes[-1]))
    amount = f"{format_bytes(round(rate))} a step, made at {where}"
    text = f"{amount}: as many tensors are there, but they had {before} and have {now} now"
    path = str(paths[0]) if paths else ""
    return Growth(GrowthKind.UNCLEAR, text, rate, path, watched.steps.device(birth))
