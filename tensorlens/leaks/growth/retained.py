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
    """What one line adds in each step to the memory below a group."""

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
    """For each path the bounded container that is filling up, or None; empty if a path has none."""
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


class RetainedMemory:
    """Live blocks of a loop, to describe groups of them.

    Args:
        watched: the samples.
        left: blocks that live at the end.
        holdings: the holders of the blocks in the groups.
    """

    def __init__(self, watched: LoopSamples, left: LeftBlocks, holdings: Holdings) -> None:
        self.watched = watched
        self._left = left
        self._holdings = holdings
        self._rows = {address: row for row, address in enumerate(left.address)}

    def describe(self, groups: list[Group]) -> list[RetainedGroup]:
        """Return all that is known of groups, merging those that one container holds."""
        groups, paths = self._merged(groups)
        bounds = bounds_of(groups, paths)
        return [
            self._describe_with_below(groups, *row)
            for row in zip(groups, paths, bounds, self._retained_of(groups), strict=True)
        ]

    def describe_one(
        self, group: Group, paths: Sequence[ReferencePath], below: Retained
    ) -> RetainedGroup:
        """Return what is known of a group by itself, its paths continued to the memory below it."""
        latest = group.latest
        survivor = latest.survivor
        birth = latest.birth
        example = _example_of(survivor, self._age(latest.step))
        # a path ends at the holder: these lead on from it to the block
        references_below = below.references
        if group.is_below:
            example, birth = self._of_root(group)
            if survivor.holders:
                references_below = survivor.holders[0].references
        elif len(group.births) > 1:
            # of several lines the one with most bytes stands for the group
            birth = next(iter(group.births))
        return RetainedGroup(
            watched=self.watched,
            judgement=group.judgement,
            birth=birth,
            blocks=tuple(LeftBlock(e.address, e.size, e.birth, e.step) for e in group.held),
            role=survivor.role,
            device=self.watched.steps.device(latest.birth),
            example=example,
            is_in_array=bool(survivor.arrays) and not survivor.tensors,
            is_unseen=survivor.is_held_unseen,
            words=survivor.words,
            paths=tuple(
                replace(path, references=(*path.references, *references_below)) for path in paths
            ),
            cycle=None if paths or latest.item is None else cycle(latest.item),
        )

    def _describe_with_below(
        self,
        groups: Sequence[Group],
        group: Group,
        paths: list[ReferencePath],
        bounds: tuple[Reference | None, ...],
        below: Retained,
    ) -> RetainedGroup:
        lines = self._lines_below(group, below)
        of_example = below
        if below.tensors:
            # the example shows what hangs below the latest root alone
            of_example = self._holdings.below(group.roots()[-1:], _roots(groups))
        found = self.describe_one(group, paths, of_example)
        if below.tensors:
            nbytes, tensors = of_example.bytes, of_example.tensors
            found = replace(
                found, example=replace(found.example, below=nbytes, below_tensors=tensors)
            )
        # a group below a root is that memory itself: its judgement has the bytes
        extra = 0.0 if group.is_below else sum(line.nbytes for line in lines)
        return replace(
            found,
            bytes_per_step=group.judgement.bytes_per_step + extra,
            bounds=bounds,
            is_renewed=self._frees_as_much(group, paths),
            below=lines,
            below_blocks=tuple(address for address, _, _ in below.blocks),
            rounding_factor=self._rounding_factor(group, below),
            nodes=self._nodes(group, below),
        )

    def _merged(self, groups: list[Group]) -> tuple[list[Group], list[list[ReferencePath]]]:
        """Merge groups of the same lines that the same container holds; return them with paths.

        Groups below a root stay apart from groups that are held themselves: only the latter can
        have further memory below them.
        """
        paths = reference_paths([group.latest.item for group in groups])
        labels = [
            (tuple(sorted(group.births)), group.is_below, container_path(own[0])) if own else None
            for group, own in zip(groups, paths, strict=True)
        ]
        merged = merge_groups(groups, labels, self.watched.span)
        of_item = {id(group.latest.item): own for group, own in zip(groups, paths, strict=True)}
        return merged, [of_item[id(group.latest.item)] for group in merged]

    def _retained_of(self, groups: Sequence[Group]) -> list[Retained]:
        """Return the memory below each group, charged to one group alone."""
        owners = [group for group in groups if not group.is_below and group.roots()]
        everything = _roots(groups)
        # memory that two groups share goes to the one with more
        owners.sort(key=lambda each: -self._holdings.below(each.roots(), everything).bytes)
        below = {
            id(group): self._holdings.below(group.roots(), _roots(owners[place:]))
            for place, group in enumerate(owners)
        }
        return [below.get(id(group), Retained(0, 0, ())) for group in groups]

    def _lines_below(self, group: Group, below: Retained) -> tuple[RetainedBelow, ...]:
        """Return the memory below a group by line and role, the most bytes first."""
        judgement = group.judgement
        if group.is_below:
            blocks = [(each.birth, each.size, each.survivor.role) for each in group.held]
            fraction = judgement.bytes_per_step / max(1, group.nbytes)
        else:
            births, rows = self._left.birth, self._rows
            blocks = [
                (births[rows[address]] if address in rows else -1, size, role)
                for address, size, role in below.blocks
            ]
            fraction = self._step_fraction(group)
        sums: dict[tuple[int, str], list[int]] = {}
        for birth, size, role in blocks:
            line = sums.setdefault((birth, role), [0, 0])
            line[0] += size
            line[1] += 1
        of_tensors = judgement.tensors_per_step / len(blocks) if group.is_below else fraction
        found = [
            RetainedBelow(birth, role, nbytes * fraction, tensors * of_tensors)
            for (birth, role), (nbytes, tensors) in sums.items()
        ]
        return tuple(sorted(found, key=lambda each: -each.nbytes))

    def _step_fraction(self, group: Group) -> float:
        """Return the fraction of the memory below a group that one step adds on average."""
        steps = len({each.step for each in group.held if each.step >= 0})
        return group.judgement.rate / max(1, steps) / self.watched.span.stride

    def _nodes(self, group: Group, below: Retained) -> float:
        if not group.is_below:
            return below.nodes * self._step_fraction(group)
        # one graph of all steps, perhaps begun before the watch: nodes are shared out as bytes are
        roots = group.roots()
        whole = self._holdings.below(roots, roots) if roots else below
        return whole.nodes * group.judgement.bytes_per_step / whole.bytes if whole.bytes else 0.0

    def _rounding_factor(self, group: Group, below: Retained) -> float:
        """Return the bytes in the allocator's figures for each byte that was asked for."""
        wanted = {each.address for each in group.held}.union(each[0] for each in below.blocks)
        rows = [self._rows[address] for address in wanted if address in self._rows]
        size = sum(self._left.size[row] for row in rows)
        return sum(self._left.rounded_size[row] for row in rows) / size if size else 1.0

    def _of_root(self, group: Group) -> tuple[Example, int]:
        """Return the tensor that a group hangs below, and the number of the line that makes it."""
        latest = group.latest
        root = self._holdings.root(latest.item)
        has_several_roots = len({id(each.item) for each in group.held}) > 1
        of_root = [each for each in group.held if not has_several_roots or each.item is latest.item]
        age = self._age(latest.step)
        birth = next(iter(group.births))
        row = self._rows.get(root.address) if root.address else None
        if row is not None and self._left.step[row] >= self.watched.span.warmup:
            birth = self._left.birth[row]
            age = self._age(self._left.step[row])
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
            below=sum(each.size for each in of_root),
            below_tensors=len(of_root),
        )
        return example, birth

    def _age(self, step: int) -> int:
        return (self.watched.span.stretches - step) * self.watched.span.stride

    def _frees_as_much(self, group: Group, paths: Sequence[ReferencePath]) -> bool:
        """Return whether the group's lines free as many blocks in each step as they make.

        They may also do so together with one other line, whose older blocks they replace.
        """
        span = self.watched.span
        figures = [each.lines for each in self.watched.figures[span.warmup : -1]]
        births = group.births
        expected = len({each.step for each in group.held if each.step in span.judged})
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


def _roots(groups: Sequence[Group]) -> list[Any]:
    return [item for group in groups if not group.is_below for item in group.roots()]


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


def _has_older(group: Group, paths: Sequence[ReferencePath]) -> bool:
    """Return whether a container holds more items than the group: a ring that was filled before."""
    most = len(group.held) + 1
    return any((each.length or 0) > most for path in paths for each in path.references)
