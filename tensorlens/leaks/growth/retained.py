"""Retained memory: its line, an example, its holders, and the memory below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.base import AdviceWords, LeftBlocks
from tensorlens.frameworks.retention import Holdings, Retained, Survivor
from tensorlens.heap.paths import cycle, reference_paths
from tensorlens.leaks.growth.containers import bounds_of, container_path
from tensorlens.leaks.growth.groups import Group, LeftBlock, merge_groups
from tensorlens.leaks.growth.growth_test import UNCLEAR, Judgement, is_renewed
from tensorlens.leaks.report import Example
from tensorlens.leaks.watched_loop import LoopSamples
from tensorlens.records.references import Reference, ReferencePath
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True)
class RetainedBelow:
    """Memory a step, below a group, that one line made."""

    birth: int
    """Number of the line; negative if unknown."""
    role: str
    nbytes: float
    tensors: float


@dataclass(frozen=True, slots=True)
class RetainedGroup:
    """A group with all that is known of it. It refers to no object of the program."""

    watched: LoopSamples
    judgement: Judgement
    birth: int
    blocks: tuple[LeftBlock, ...]
    role: str
    device: str
    example: Example
    is_in_array: bool
    is_unseen: bool
    words: AdviceWords
    bytes_per_step: float = 0.0
    """Bytes a step, with the memory below it."""
    paths: tuple[ReferencePath, ...] = ()
    bounds: tuple[Reference | None, ...] = ()
    """The container with a bound that is filling up, for each path that has one."""
    cycle: ReferencePath | None = None
    is_garbage: bool = False
    """Whether the collector has freed it, or a cycle holds it while the collector is off."""
    is_replaced: bool = False
    """Whether it is one tensor that a larger one replaces in each step."""
    is_renewed: bool = False
    """Whether its lines free as many blocks in each step as they make."""
    below: tuple[RetainedBelow, ...] = ()
    below_blocks: tuple[int, ...] = ()
    """Addresses of the blocks below it."""
    rounding_factor: float = 1.0
    """Bytes in the allocator's figures for each byte that was asked for."""
    nodes: float = 0.0
    """Nodes of autograd's graph that stay in each step."""
    is_population: bool = False
    """Whether each block is freed some steps later, while more blocks are made."""

    @property
    def line(self) -> SourceLine | None:
        """The line that made it, if known."""
        return self.watched.steps.line(self.birth)

    @property
    def is_held(self) -> bool:
        """Whether a path from a root of Python's heap holds it."""
        return any(not path.is_cut for path in self.paths)

    @property
    def is_explained(self) -> bool:
        """Whether its blocks account for growth: it is neither unclear nor renewed."""
        return not self.is_renewed and self.judgement.certainty != UNCLEAR


def describe(
    groups: list[Group], holdings: Holdings, left: LeftBlocks, watched: LoopSamples
) -> list[RetainedGroup]:
    """Return all that is known of groups, merging those that one container holds."""
    groups, paths = _merged(groups, reference_paths([each.latest.item for each in groups]), watched)
    rows = zip(
        groups,
        paths,
        bounds_of(groups, paths),
        _retained_of(groups, holdings),
        strict=True,
    )
    found = []
    for group, own_paths, bounds, below in rows:
        lines = _lines_below(group, below, left, watched)
        of_example = below
        if below.tensors:
            of_example = holdings.below(group.roots()[-1:], _roots(groups))
        each = describe_one(group, own_paths, of_example, holdings, left, watched)
        if below.tensors:
            nbytes, tensors = of_example.bytes, of_example.tensors
            example = replace(each.example, below=nbytes, below_tensors=tensors)
            each = replace(each, example=example)
        extra = 0.0 if group.is_below else sum(line.nbytes for line in lines)
        found.append(
            replace(
                each,
                bytes_per_step=group.judgement.bytes_per_step + extra,
                bounds=bounds,
                is_renewed=_frees_as_much(group, own_paths, watched),
                below=lines,
                below_blocks=tuple(address for address, _, _ in below.blocks),
                rounding_factor=_rounding_factor(group, below, left),
                nodes=_nodes(group, below, holdings, watched),
            )
        )
    return found


def _lines_below(
    group: Group, below: Retained, left: LeftBlocks, watched: LoopSamples
) -> tuple[RetainedBelow, ...]:
    """Return the memory below a group by line and role, the most bytes first."""
    judgement = group.judgement
    if group.is_below:
        blocks = [(each.block.birth, each.block.size, each.survivor.role) for each in group.held]
        fraction = judgement.bytes_per_step / max(1, group.nbytes)
    else:
        births = dict(zip(left.address, left.birth, strict=True))
        blocks = [(births.get(address, -1), size, role) for address, size, role in below.blocks]
        fraction = _step_fraction(group, watched)
    sums: dict[tuple[int, str], list[int]] = {}
    for birth, size, role in blocks:
        line = sums.setdefault((birth, role), [0, 0])
        line[0] += size
        line[1] += 1
    count = len(blocks)
    found = [
        RetainedBelow(
            birth,
            role,
            nbytes * fraction,
            tensors * (judgement.tensors_per_step / count if group.is_below else fraction),
        )
        for (birth, role), (nbytes, tensors) in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.nbytes))


def _step_fraction(group: Group, watched: LoopSamples) -> float:
    """Return the fraction of the memory below a group that one step has made."""
    steps = len({block.step for block in group.blocks if block.step >= 0})
    return group.judgement.rate / max(1, steps) / watched.span.stride


def _nodes(group: Group, below: Retained, holdings: Holdings, watched: LoopSamples) -> float:
    if not group.is_below:
        return below.nodes * _step_fraction(group, watched)
    # one graph of all steps, perhaps begun before the watch: a step's fraction is that of its bytes
    roots = group.roots()
    whole = holdings.below(roots, roots) if roots else below
    return whole.nodes * group.judgement.bytes_per_step / whole.bytes if whole.bytes else 0.0


def _rounding_factor(group: Group, below: Retained, left: LeftBlocks) -> float:
    """Return the bytes in the allocator's figures for each byte that was asked for."""
    wanted = {block.address for block in group.blocks}.union(each[0] for each in below.blocks)
    rows = [row for row, address in enumerate(left.address) if address in wanted]
    size = sum(left.size[row] for row in rows)
    return sum(left.rounded_size[row] for row in rows) / size if size else 1.0


def _merged(
    groups: list[Group], paths: list[list[ReferencePath]], watched: LoopSamples
) -> tuple[list[Group], list[list[ReferencePath]]]:
    """Merge groups of the same lines that the same container holds.

    Blocks that hang below something are not merged with blocks that are held themselves: these may
    have more below them.
    """
    labels = [
        (tuple(sorted(group.births)), group.is_below, container_path(own[0])) if own else None
        for group, own in zip(groups, paths, strict=True)
    ]
    merged = merge_groups(groups, labels, watched.span)
    of_item = {id(group.latest.item): own for group, own in zip(groups, paths, strict=True)}
    return merged, [of_item[id(group.latest.item)] for group in merged]


def _roots(groups: Sequence[Group]) -> list[Any]:
    return [item for group in groups if not group.is_below for item in group.roots()]


def _retained_of(groups: Sequence[Group], holdings: Holdings) -> list[Retained]:
    """Return the memory below each group, charged to one group alone."""
    nothing = Retained(0, 0, ())
    below = {id(group): nothing for group in groups}
    owners = [group for group in groups if not group.is_below and group.roots()]
    everything = _roots(groups)
    alone = [(holdings.below(group.roots(), everything).bytes, group) for group in owners]
    alone.sort(key=lambda pair: -pair[0])
    # memory that two groups share goes to the one with more
    ordered = [group for _, group in alone]
    for place, group in enumerate(ordered):
        below[id(group)] = holdings.below(group.roots(), _roots(ordered[place:]))
    return [below[id(group)] for group in groups]


def describe_one(
    group: Group,
    paths: Sequence[ReferencePath],
    below: Retained,
    holdings: Holdings,
    left: LeftBlocks,
    watched: LoopSamples,
) -> RetainedGroup:
    """Return what is known of a group by itself, its paths continued to the memory below it."""
    latest = group.latest
    survivor = latest.survivor
    birth = latest.block.birth
    example = _example_of(survivor, _age(watched, latest.block.step))
    onward = below.references
    if group.is_below:
        example, birth = _of_root(group, holdings, left, watched)
        onward = survivor.holders[0].references if survivor.holders else onward
    elif len(group.births) > 1:
        birth = next(iter(group.births))
    return RetainedGroup(
        watched=watched,
        judgement=group.judgement,
        birth=birth,
        blocks=tuple(group.blocks),
        role=survivor.role,
        device=watched.steps.device(latest.block.birth),
        example=example,
        is_in_array=bool(survivor.arrays) and not survivor.tensors,
        is_unseen=survivor.is_held_unseen,
        words=survivor.words,
        paths=tuple(replace(path, references=(*path.references, *onward)) for path in paths),
        cycle=None if paths or latest.item is None else cycle(latest.item),
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


def _of_root(
    group: Group, holdings: Holdings, left: LeftBlocks, watched: LoopSamples
) -> tuple[Example, int]:
    """Return the tensor that a group hangs below, and the number of the line that makes it."""
    latest = group.latest
    root = holdings.root(latest.item)
    several = len({id(each.item) for each in group.held}) > 1
    judged = [each for each in group.held if not several or each.item is latest.item]
    age = _age(watched, latest.block.step)
    birth = next(iter(group.births))
    rows = [row for row, address in enumerate(left.address) if address and address == root.address]
    if rows and left.step[rows[0]] >= watched.span.warmup:
        birth = left.birth[rows[0]]
        age = _age(watched, left.step[rows[0]])
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
        below=sum(each.block.size for each in judged),
        below_tensors=len(judged),
    )
    return example, birth


def _age(watched: LoopSamples, step: int) -> int:
    return (watched.span.stretches - step) * watched.span.stride


def _frees_as_much(group: Group, paths: Sequence[ReferencePath], watched: LoopSamples) -> bool:
    """Return whether as many blocks are freed in each step as are made."""
    span = watched.span
    figures = [each.lines for each in watched.figures[span.warmup : -1]]
    births = group.births
    expected = len({block.step for block in group.blocks if block.step in span.judged})
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
    """Return whether a container holds items beside those of the steps, as a ring filled before."""
    most = len(group.held) + 1
    return any((each.length or 0) > most for path in paths for each in path.references)
