"""Retained memory: its line, an example, its holders, and the memory below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tensorlens.frameworks.base import AdviceWords
from tensorlens.frameworks.retention import LeftBlock, Retained, Survivor
from tensorlens.heap.paths import cycle, reference_paths
from tensorlens.leaks.growth.containers import bounds_of, container_path
from tensorlens.leaks.growth.groups import Group, merge_groups
from tensorlens.leaks.growth.growth_test import UNCLEAR, Judgement, is_renewed
from tensorlens.leaks.report import BelowLine, Example, source_of
from tensorlens.leaks.watched_loop import LoopSamples
from tensorlens.records.references import Reference, ReferencePath
from tensorlens.records.tensors import SourceLine

_NOTHING = Retained(0, 0, ())


class Fate(StrEnum):
    """What becomes of the blocks of a group."""

    KEPT = "kept"
    """They stay."""
    REPLACED = "replaced"
    """It is one block that a larger one replaces in each step."""
    RENEWED = "renewed"
    """Their lines free as many blocks in each step as they make."""
    CONSUMED = "consumed"
    """Each is freed some steps later, while more blocks are made."""
    GARBAGE = "garbage"
    """The collector has freed them, or a cycle holds them while the collector is off."""


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
    bytes_per_step: float
    """Bytes a step, with the memory below it."""
    paths: tuple[ReferencePath, ...]
    bounds: tuple[Reference | None, ...]
    """For each path the bounded container that is filling up, or None; empty if a path has none."""
    cycle: ReferencePath | None
    fate: Fate
    below: tuple[BelowLine, ...]
    below_blocks: tuple[int, ...]
    """Addresses of the blocks below it."""
    rounding_factor: float
    """Bytes in the allocator's figures for each byte that was asked for."""
    nodes: float
    """Nodes of autograd's graph that stay in each step."""

    @property
    def line(self) -> SourceLine | None:
        """The line that made it, if known."""
        return self.watched.steps.line(self.birth)

    @property
    def path(self) -> str:
        """The shortest path that holds it, or the cycle that does; empty if none was found."""
        return str(self.paths[0] if self.paths else self.cycle or "")

    @property
    def is_held(self) -> bool:
        """Whether a path from a root of Python's heap holds it."""
        return any(not path.is_cut for path in self.paths)

    @property
    def is_explained(self) -> bool:
        """Whether its blocks account for growth: it is neither unclear nor renewed."""
        return self.fate is not Fate.RENEWED and self.judgement.certainty != UNCLEAR


class RetainedMemory:
    """Some blocks that a loop left, with their holders, to describe groups of them.

    Args:
        watched: the samples.
        blocks: the blocks, whose holders the heap is searched for.
    """

    def __init__(self, watched: LoopSamples, blocks: Sequence[LeftBlock]) -> None:
        self.watched = watched
        self._left = {each.address: each for each in watched.left}
        self._holdings = watched.steps.holdings([each.address for each in blocks])
        found = zip(blocks, self._holdings.survivors, strict=True)
        self.held = [each._replace(survivor=survivor) for each, survivor in found]
        """The blocks with their holders."""

    def describe(self, groups: list[Group]) -> list[RetainedGroup]:
        """Return all that is known of groups, merging those that one container holds."""
        groups, paths = self._merged(groups)
        bounds, below = bounds_of(groups, paths), self._below(groups)
        return [self.describe_one(*row) for row in zip(groups, paths, bounds, below, strict=True)]

    def describe_one(
        self,
        group: Group,
        paths: Sequence[ReferencePath],
        bounds: tuple[Reference | None, ...],
        below: tuple[Retained, Retained] = (_NOTHING, _NOTHING),
    ) -> RetainedGroup:
        """Return what is known of a group.

        Args:
            group: its blocks.
            paths: the paths to its latest block.
            bounds: for each path the container that is filling up.
            below: the memory below the group, and below its latest block alone.
        """
        latest = group.latest
        survivor = latest.survivor
        everything, of_latest = below
        lines = self._lines_below(group, everything)
        # a path ends at the holder: these lead on from it to the block
        references_below = of_latest.references
        if group.is_below:
            example, birth = self._root_of(group)
            nbytes = 0.0
            references_below = survivor.holders[0].references
        else:
            example = self._example_of(survivor, latest.step, of_latest.bytes, of_latest.tensors)
            # of several lines the one with most bytes stands for the group
            birth = next(iter(group.births))
            nbytes = sum(line.bytes_per_step for line in lines)
        return RetainedGroup(
            watched=self.watched,
            judgement=group.judgement,
            birth=birth,
            blocks=tuple(self._left[each.address] for each in group.held),
            role=survivor.role,
            device=self.watched.steps.device(latest.birth),
            example=example,
            is_in_array=bool(survivor.arrays) and not survivor.tensors,
            is_unseen=survivor.is_held_unseen,
            words=survivor.words,
            # a group below a root is that memory itself: its judgement has the bytes
            bytes_per_step=group.judgement.bytes_per_step + nbytes,
            paths=tuple(
                replace(path, references=(*path.references, *references_below)) for path in paths
            ),
            bounds=bounds,
            cycle=None if paths or survivor.item is None else cycle(survivor.item),
            fate=Fate.RENEWED if self._frees_as_much(group, paths) else Fate.KEPT,
            below=lines,
            below_blocks=tuple(address for address, _, _ in everything.blocks),
            rounding_factor=self._rounding_factor(group, everything),
            nodes=self._nodes(group, everything),
        )

    def _merged(self, groups: list[Group]) -> tuple[list[Group], list[list[ReferencePath]]]:
        """Merge groups of the same lines that the same container holds; return them with paths.

        Groups below a root stay apart from groups that are held themselves: only the latter can
        have further memory below them.
        """
        paths = reference_paths([group.latest.survivor.item for group in groups])
        labels = [
            (tuple(sorted(group.births)), group.is_below, container_path(own[0])) if own else None
            for group, own in zip(groups, paths, strict=True)
        ]
        merged = merge_groups(groups, labels, self.watched.span)
        of_latest = {group.latest.address: own for group, own in zip(groups, paths, strict=True)}
        return merged, [of_latest[group.latest.address] for group in merged]

    def _below(self, groups: Sequence[Group]) -> list[tuple[Retained, Retained]]:
        """Return the memory below each group, charged to it alone, and below its latest block."""
        owners = [group for group in groups if not group.is_below and group.roots()]
        everything = _roots(groups)
        # memory that two groups share goes to the one with more
        owners.sort(key=lambda each: -self._holdings.below(each.roots(), everything).bytes)
        found = {id(group): (_NOTHING, _NOTHING) for group in groups}
        for place, group in enumerate(owners):
            below = self._holdings.below(group.roots(), _roots(owners[place:]))
            latest = self._holdings.below(group.roots()[-1:], everything)
            found[id(group)] = below, latest if below.tensors else below
        return [found[id(group)] for group in groups]

    def _lines_below(self, group: Group, below: Retained) -> tuple[BelowLine, ...]:
        """Return the memory below a group by line and role, the most bytes first."""
        judgement = group.judgement
        if group.is_below:
            blocks = [(each.birth, each.size, each.survivor.role) for each in group.held]
            fraction = judgement.bytes_per_step / max(1, group.nbytes)
            of_tensors = judgement.tensors_per_step / len(blocks)
        else:
            left = self._left
            blocks = [
                (left[address].birth if address in left else -1, size, role)
                for address, size, role in below.blocks
            ]
            fraction = of_tensors = self._step_fraction(group)
        sums: dict[tuple[int, str], list[int]] = {}
        for birth, size, role in blocks:
            line = sums.setdefault((birth, role), [0, 0])
            line[0] += size
            line[1] += 1
        found = [
            self.below_line(birth, nbytes * fraction, tensors * of_tensors, role)
            for (birth, role), (nbytes, tensors) in sums.items()
        ]
        return tuple(sorted(found, key=lambda each: -each.bytes_per_step))

    def below_line(self, birth: int, nbytes: float, tensors: float, role: str) -> BelowLine:
        """Return the record of what a line adds in each step to the memory below a group."""
        line = self.watched.steps.line(birth)
        return BelowLine(line, nbytes, tensors, role, source_of(line))

    def _step_fraction(self, group: Group) -> float:
        """Return the fraction of the memory below a group that one step adds on average."""
        steps = len({each.step for each in group.held})
        return group.judgement.rate / steps / self.watched.span.stride

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
        blocks = [self._left[address] for address in wanted if address in self._left]
        size = sum(each.size for each in blocks)
        return sum(each.rounded_size for each in blocks) / size if size else 1.0

    def _example_of(
        self, survivor: Survivor, step: int, below: int = 0, below_tensors: int = 0
    ) -> Example:
        return Example(
            name=survivor.name,
            dtype=survivor.dtype,
            shape=survivor.shape,
            nbytes=survivor.shown or survivor.size,
            storage_nbytes=survivor.size,
            grad_fn=survivor.grad_fn,
            age=(self.watched.span.stretches - step) * self.watched.span.stride,
            below=below,
            below_tensors=below_tensors,
        )

    def _root_of(self, group: Group) -> tuple[Example, int]:
        """Return the tensor that a group hangs below, and the number of the line that makes it."""
        latest = group.latest
        holder = latest.survivor.holders[0]
        root = holder.described
        birth, step = next(iter(group.births)), latest.step
        if not root.address:
            # a node by itself
            example = self._example_of(latest.survivor, step)
            return replace(example, grad_fn=root.grad_fn), birth
        block = self._left.get(root.address)
        if block is not None and block.step >= self.watched.span.warmup:
            birth, step = block.birth, block.step
        of_root = [each.size for each in group.held if each.survivor.item is holder.item]
        return self._example_of(root, step, sum(of_root), len(of_root)), birth

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


def _has_older(group: Group, paths: Sequence[ReferencePath]) -> bool:
    """Return whether a container holds more items than the group: a ring that was filled before."""
    most = len(group.held) + 1
    return any((each.length or 0) > most for path in paths for each in path.references)
