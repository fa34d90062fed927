"""What is left behind, described: its line, an example, what hangs below it and who holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.base import Left
from tensorlens.frameworks.heap.paths import cycle, paths
from tensorlens.frameworks.survivors import Below, Holdings, Survivor
from tensorlens.frameworks.words import Words
from tensorlens.leaks.bounds import bound, filling
from tensorlens.leaks.groups import Block, Group, Held, candidates, grouped, joined
from tensorlens.leaks.renewal import frees_as_much, grown_lines, steps_of
from tensorlens.leaks.steady import Judgement
from tensorlens.leaks.watched import Watched
from tensorlens.records.leaks import Example, Reference, ReferencePath

_MOST_BLOCKS = 20_000
"""Blocks whose holders are looked for; of more, some of each step."""
_MOST_GROUPS = 20
"""Groups whose paths are searched for, those with the most bytes."""
_FEW_GROUPS = 5
"""Groups of which it is asked at once, too, who holds what the earliest steps left."""


@dataclass(frozen=True, slots=True)
class Found:
    """A group with all that is known of it; it refers to nothing of the program."""

    judgement: Judgement
    birth: int
    blocks: tuple[Block, ...]
    bytes_per_step: float
    """With what hangs below."""
    role: str
    device: str
    example: Example
    paths: tuple[ReferencePath, ...]
    bounds: tuple[Reference | None, ...]
    """For each path the container on it that is filling up and has an end, if it is one."""
    cycle: ReferencePath | None
    is_graphs_cycle: bool
    """Whether the cycle runs through autograd, where the collector does not look."""
    is_garbage: bool
    """Whether the collector has freed it."""
    is_in_array: bool
    is_unseen: bool
    is_replaced: bool
    """Whether it is one tensor, that a larger one replaces in each step."""
    is_renewed: bool
    """Whether its lines free as much in each step as they make."""
    words: Words


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found."""

    found: list[Found]
    unseen: int = 0
    """How many groups grew besides, the smallest, which nobody has looked at."""
    unseen_bytes_per_step: float = 0.0


def look(watched: Watched) -> Look:
    """Return what is left of each of the steps; the heap is read once."""
    left = watched.steps.left(0)
    if left is None:
        return Look([])
    blocks = candidates(left, watched.span)
    holdings = watched.steps.holdings([block.address for block in _few(blocks)])
    groups = grouped(_few(blocks), holdings.survivors, watched.span)
    known = frozenset(block.birth for group in groups for block in group.blocks)
    groups.sort(key=lambda group: -group.nbytes)
    unseen = [group.judgement.bytes_per_step for group in groups[_MOST_GROUPS:]]
    found = _described(groups[:_MOST_GROUPS], holdings, left, watched)
    del holdings, groups
    return Look(found + _replaced(watched, left, known), len(unseen), sum(unseen))


def _few(blocks: list[Block]) -> list[Block]:
    if len(blocks) <= _MOST_BLOCKS:
        return blocks
    ordered = sorted(blocks, key=lambda block: (block.birth, block.step))
    every = -(-len(ordered) // _MOST_BLOCKS)
    return ordered[::every]


def _described(
    groups: list[Group], holdings: Holdings, left: Left, watched: Watched
) -> list[Found]:
    few = groups if len(groups) <= _FEW_GROUPS else []
    latest, earliest = ([each.latest.item for each in groups], [each.earliest.item for each in few])
    # asked together: each question reads the heap once
    ways = _ways([*latest, *earliest])
    earlier = {
        id(group.latest.item): way for group, way in zip(few, ways[len(groups) :], strict=True)
    }
    del latest, earliest
    groups, ways = _joined(groups, ways[: len(groups)], watched)
    below = _charged(groups, holdings)
    items = [group.latest.item for group in groups]
    bounded = _bounded(groups, ways, earlier)
    circles = _circles(items, ways)
    found = []
    for place, group in enumerate(groups):
        own, circle = ways[place], circles[place]
        one = holdings.below(group.roots()[-1:], _roots(groups)) if below[place].tensors else None
        described = _found(group, holdings, left, watched)
        if one is not None:
            example = replace(described.example, below=one.bytes, below_tensors=one.tensors)
            described = replace(described, example=example)
        found.append(
            replace(
                described,
                **_reached(group, own, circle, one or below[place]),
                bytes_per_step=_bytes_per_step(group, below[place]),
                bounds=bounded[place],
                is_renewed=frees_as_much(group, own, watched),
            )
        )
    return found


def _joined(
    groups: list[Group], ways: list[list[ReferencePath]], watched: Watched
) -> tuple[list[Group], list[list[ReferencePath]]]:
    """Put groups of the same lines together that the same container holds.

    Not what hangs below something else with what is held itself: below that, more may hang.
    """
    labels = [
        (tuple(sorted(group.births)), group.is_below, _container(own[0])) if own else None
        for group, own in zip(groups, ways, strict=True)
    ]
    together = joined(groups, labels, watched.span)
    of_item = {id(group.latest.item): own for group, own in zip(groups, ways, strict=True)}
    return together, [of_item[id(group.latest.item)] for group in together]


def _container(way: ReferencePath) -> tuple[str, ...]:
    """Return a way up to the first place that is one of many."""
    texts = [reference.text for reference in way.references]
    for at, text in enumerate(texts):
        if "[" in text or "{" in text:
            return *texts[:at], text.partition("[")[0]
    return tuple(texts)


def _ways(items: Sequence[Any]) -> list[list[ReferencePath]]:
    ways = iter(paths([item for item in items if item is not None]))
    return [next(ways) if item is not None else [] for item in items]


def _circles(
    items: Sequence[Any], ways: Sequence[Sequence[ReferencePath]]
) -> list[ReferencePath | None]:
    found: list[ReferencePath | None] = []
    # by their places: an iterator would be found to hold them
    for place in range(len(items)):
        wanted = items[place] is not None and not ways[place]
        found.append(cycle(items[place]) if wanted else None)
    return found


def _bounded(
    groups: Sequence[Group],
    ways: list[list[ReferencePath]],
    earlier: dict[int, list[ReferencePath]],
) -> list[tuple[Reference | None, ...]]:
    """Return for each way the container that is filling up.

    ``earlier`` are the ways to the earliest of some groups; others are asked where it matters.
    """
    open_ = [
        place
        for place, own in enumerate(ways)
        if own and all(any(map(bound, way.references)) for way in own)
    ]
    left = [place for place in open_ if id(groups[place].latest.item) not in earlier]
    asked = dict(zip(left, _ways([groups[place].earliest.item for place in left]), strict=True))
    found: list[tuple[Reference | None, ...]] = [() for _ in groups]
    for place in open_:
        others = asked.get(place) or earlier.get(id(groups[place].latest.item), [])
        found[place] = tuple(filling(way, others) for way in ways[place])
    return found


def _roots(groups: Sequence[Group]) -> list[Any]:
    return [item for group in groups if not group.is_below for item in group.roots()]


def _charged(groups: Sequence[Group], holdings: Holdings) -> list[Below]:
    """Return what hangs below each group, each of it charged to one group alone."""
    nothing = Below(0, 0, ())
    below = {id(group): nothing for group in groups}
    owners = [group for group in groups if not group.is_below and group.roots()]
    everything = _roots(groups)
    alone = [(holdings.below(group.roots(), everything).bytes, group) for group in owners]
    alone.sort(key=lambda pair: -pair[0])
    # what two groups share goes to the one with more
    left = [group for _, group in alone]
    while left:
        below[id(left[0])] = holdings.below(left[0].roots(), _roots(left))
        del left[0]
    return [below[id(group)] for group in groups]


def _bytes_per_step(group: Group, below: Below) -> float:
    judgement = group.judgement
    steps = len(steps_of(group, range(max(block.step for block in group.blocks) + 1)))
    return judgement.bytes_per_step + below.bytes / max(1, steps) * judgement.rate


def _found(group: Group, holdings: Holdings, left: Left, watched: Watched) -> Found:
    latest = group.latest
    survivor = latest.survivor
    birth, age = latest.block.birth, watched.count - latest.block.step
    example = _example_of(survivor, age)
    if group.is_below:
        example, birth = _of_root(group, holdings, left, watched)
    elif len(group.births) > 1:
        birth = next(iter(group.births))
    return Found(
        judgement=group.judgement,
        birth=birth,
        blocks=tuple(group.blocks),
        bytes_per_step=0.0,
        role=survivor.role,
        device=watched.steps.device(latest.block.birth),
        example=example,
        paths=(),
        bounds=(),
        cycle=None,
        is_graphs_cycle=False,
        is_garbage=False,
        is_in_array=bool(survivor.arrays) and not survivor.tensors,
        is_unseen=survivor.is_held_unseen,
        is_replaced=False,
        is_renewed=False,
        words=survivor.words,
    )


def _example_of(survivor: Survivor, age: int) -> Example:
    return Example(
        name=survivor.name,
        dtype=survivor.dtype,
        shape=survivor.shape,
        nbytes=survivor.shown or survivor.size,
        storage_nbytes=survivor.size,
        grad_fn=survivor.grad_fn,
        age=age,
    )


def _of_root(group: Group, holdings: Holdings, left: Left, watched: Watched) -> tuple[Example, int]:
    """Return the tensor that all of a group hangs below, and the line that makes it."""
    latest = group.latest
    root = holdings.root(latest.item)
    several = len({id(each.item) for each in group.held}) > 1
    counted = [each for each in group.held if not several or each.item is latest.item]
    age = watched.count - latest.block.step
    birth = next(iter(group.births))
    rows = [row for row, address in enumerate(left.address) if address and address == root.address]
    if rows and left.step[rows[0]] >= watched.warmup:
        birth, age = left.birth[rows[0]], watched.count - left.step[rows[0]]
    if not root.address:
        # a node by itself
        return replace(_example_of(latest.survivor, age), grad_fn=root.grad_fn), birth
    example = Example(
        name=root.name,
        dtype=root.dtype,
        shape=root.shape,
        nbytes=root.nbytes,
        storage_nbytes=root.storage_nbytes,
        grad_fn=root.grad_fn,
        age=age,
        below=sum(each.block.size for each in counted),
        below_tensors=len(counted),
    )
    return example, birth


def _reached(
    group: Group, ways: Sequence[ReferencePath], circle: ReferencePath | None, below: Below
) -> dict[str, Any]:
    survivor = group.latest.survivor
    onward = below.references
    if group.is_below and survivor.holders:
        onward = survivor.holders[0].references
    is_graphs = not ways and bool(survivor.cycle)
    found: dict[str, Any] = {
        "paths": tuple(replace(way, references=(*way.references, *onward)) for way in ways),
        "cycle": ReferencePath(survivor.cycle) if is_graphs else circle,
        "is_graphs_cycle": is_graphs,
    }
    return found


def _replaced(watched: Watched, left: Left, known: frozenset[int]) -> list[Found]:
    """Return lines whose one block is replaced by a larger one in each step."""
    grown = grown_lines(watched, known)
    largest: dict[int, int] = {}
    for row, birth in enumerate(left.birth):
        if birth in grown and (birth not in largest or left.size[largest[birth]] < left.size[row]):
            largest[birth] = row
    blocks = [
        Block(left.address[row], left.size[row], birth, left.step[row])
        for birth, row in largest.items()
    ]
    if not blocks:
        return []
    holdings = watched.steps.holdings([block.address for block in blocks])
    groups = [
        Group([Held(block, survivor)], grown[block.birth])
        for block, survivor in zip(blocks, holdings.survivors, strict=True)
    ]
    return [
        replace(each, is_replaced=True, is_renewed=False, bounds=())
        for each in _described(groups[:_MOST_GROUPS], holdings, left, watched)
    ]
