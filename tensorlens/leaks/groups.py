"""Blocks that steps left behind, put together by the line that made them and what holds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.frameworks.base import Left as Blocks
from tensorlens.frameworks.survivors import Survivor
from tensorlens.leaks.steady import NONE, Judgement, Left, judge

_INDEX = re.compile(r"\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class Block:
    """One block that a step left behind."""

    address: int
    size: int
    birth: int
    step: int


@dataclass(slots=True, eq=False)
class Group:
    """What is alike: made by one line and held the same way, or below one root of a graph."""

    birth: int
    blocks: list[Block] = field(default_factory=list)
    survivors: list[Survivor] = field(default_factory=list)
    """Who holds each of the blocks."""
    root: Any = None
    """The tensor or node that they all hang below, where they are held by nothing else."""

    def judged(self, steps: Sequence[int]) -> Judgement:
        """Tell whether every step left something of it behind."""
        return judge(left_by_step(self.blocks), steps)

    @property
    def latest(self) -> Survivor:
        """The survivor of the latest step."""
        place = max(range(len(self.blocks)), key=lambda at: self.blocks[at].step)
        return self.survivors[place]

    def roots(self, steps: Sequence[int]) -> list[Any]:
        """Return the tensors and other roots of what these steps left."""
        if self.root is not None:
            return [self.root]
        found: dict[int, Any] = {}
        for block, survivor in zip(self.blocks, self.survivors, strict=True):
            if block.step in steps:
                items = survivor.tensors or tuple(each.item for each in survivor.holders[:1])
                found.update((id(item), item) for item in items)
        return [*found.values()]


def left_by_step(blocks: Sequence[Block]) -> dict[int, Left]:
    """Return what is left of each step."""
    totals: dict[int, list[int]] = {}
    for block in blocks:
        total = totals.setdefault(block.step, [0, 0])
        total[0] += 1
        total[1] += block.size
    return {step: Left(tensors, nbytes) for step, (tensors, nbytes) in totals.items()}


def candidates(blocks: Blocks, steps: Sequence[int]) -> list[Block]:
    """Return the blocks of lines that may leave something behind in every step.

    A line is judged as a whole and for each size that it makes: of a line that makes a state once
    and leaks besides, the leak alone is taken.
    """
    by_line: dict[int, list[Block]] = {}
    wanted = frozenset(steps)
    for address, size, birth, step in zip(
        blocks.address, blocks.size, blocks.birth, blocks.step, strict=True
    ):
        if step in wanted:
            by_line.setdefault(birth, []).append(Block(address, size, birth, step))
    found: list[Block] = []
    for line in by_line.values():
        found += _of_line(line, steps)
    return found


def _of_line(blocks: list[Block], steps: Sequence[int]) -> list[Block]:
    if judge(left_by_step(blocks), steps).certainty == NONE:
        return []
    by_size: dict[int, list[Block]] = {}
    for block in blocks:
        by_size.setdefault(block.size, []).append(block)
    steady = [
        each for each in by_size.values() if judge(left_by_step(each), steps).certainty != NONE
    ]
    # where no size comes again and again, as with texts of different length, all are one
    return [block for each in steady or [blocks] for block in each]


def grouped(blocks: Sequence[Block], survivors: Sequence[Survivor]) -> list[Group]:
    """Put blocks together that one line made and that are held the same way.

    What only hangs below a tensor is not a group of its own where that tensor is left behind
    too: it is counted with it. Where the tensor is not, what hangs below it makes one group.
    """
    own = {
        id(tensor)
        for survivor in survivors
        if _is_held_itself(survivor)
        for tensor in survivor.tensors
    }
    groups: dict[Any, Group] = {}
    for block, survivor in zip(blocks, survivors, strict=True):
        root = None
        if not _is_held_itself(survivor) and survivor.holders:
            if any(id(holder.item) in own for holder in survivor.holders):
                continue
            root = survivor.holders[0].item
        key: Any = (block.birth, _INDEX.sub("[*]", survivor.name), survivor.role)
        if root is not None:
            key = id(root)
        group = groups.setdefault(key, Group(block.birth, root=root))
        group.blocks.append(block)
        group.survivors.append(survivor)
    return [*groups.values()]


def _is_held_itself(survivor: Survivor) -> bool:
    return bool(survivor.tensors or survivor.arrays or survivor.storages)


def growing_lines(
    figures: Sequence[Mapping[int, tuple[int, int]]], known: frozenset[int]
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Give each line that is not in ``known`` with its blocks and bytes after each step."""
    for birth in figures[-1]:
        if birth not in known:
            series = [each.get(birth, (0, 0)) for each in figures]
            yield birth, [blocks for blocks, _ in series], [nbytes for _, nbytes in series]
