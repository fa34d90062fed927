"""Groups of blocks that steps left behind, by the line that made them and their holders."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tensorlens.frameworks.retention import LeftBlock
from tensorlens.leaks.growth.growth_test import Judgement, LeftOfStep, judge
from tensorlens.leaks.watched_loop import Span

_BY_SIZE, _BY_LINE = attrgetter("birth", "size"), attrgetter("birth")
_HEAD = re.compile(r"[^\[{]*")
_NUMBER = re.compile(r"[ _]?\d+")
_MAX_NAMES = 16
"""Different names of one line's tensors above which names are ignored."""


@dataclass(slots=True, eq=False)
class Group:
    """Blocks of one line that are alike, blocks below the same root, or several such merged."""

    held: list[LeftBlock]
    """The blocks, with their holders."""
    judgement: Judgement
    is_below: bool = False
    """Whether its blocks only hang below tensors or nodes that are not left behind themselves."""

    @property
    def nbytes(self) -> int:
        """The bytes of all its blocks."""
        return sum(each.size for each in self.held)

    @property
    def births(self) -> dict[int, int]:
        """Lines that made it, with the bytes of each, the most first."""
        totals: dict[int, int] = {}
        for each in self.held:
            totals[each.birth] = totals.get(each.birth, 0) + each.size
        return dict(sorted(totals.items(), key=lambda pair: -pair[1]))

    @property
    def latest(self) -> LeftBlock:
        """The largest block of the latest step."""
        return latest_of(self.held)

    @property
    def earliest(self) -> LeftBlock:
        """The largest block of the earliest step."""
        return min(self.held, key=lambda each: (each.step, -each.size))

    def roots(self) -> list[Any]:
        """Return each block's tensors, or the first holder of a block without any."""
        found: dict[int, Any] = {}
        for each in self.held:
            holders = (holder.item for holder in each.survivor.holders[:1])
            found.update((id(item), item) for item in each.survivor.tensors or holders)
        return [*found.values()]


def latest_of(held: Sequence[LeftBlock]) -> LeftBlock:
    """Return the largest block of the latest step."""
    return max(held, key=lambda each: (each.step, each.size))


def left_by_step(blocks: Sequence[LeftBlock]) -> dict[int, LeftOfStep]:
    """Return the sums of blocks that are left of each step."""
    totals: dict[int, list[int]] = {}
    for block in blocks:
        total = totals.setdefault(block.step, [0, 0])
        total[0] += 1
        total[1] += block.size
    return {step: LeftOfStep(tensors, nbytes) for step, (tensors, nbytes) in totals.items()}


def candidates(blocks: Sequence[LeftBlock], span: Span) -> list[LeftBlock]:
    """Return the blocks of lines that may leave something behind in each step, or regularly."""
    by_line: dict[int, list[LeftBlock]] = {}
    for each in blocks:
        by_line.setdefault(each.birth, []).append(each)
    judged = ((each, judge(left_by_step(each), span)) for each in by_line.values())
    return [block for each, judgement in judged if judgement is not None for block in each]


def groups_of(held: Sequence[LeftBlock], span: Span) -> list[Group]:
    """Return the growing groups of one line's blocks, by name and role, else by size, else whole.

    A block that only hangs below a tensor is counted with that tensor if it is left behind too.
    Otherwise, as with a running sum, all blocks below the tensor make one group.
    """
    itself = [each for each in held if not each.survivor.is_below]
    groups = _growing_groups(itself, (name_key(itself), _BY_SIZE, _BY_LINE), span)
    own = {id(tensor) for group in groups for tensor in group.roots()}
    below = [
        each
        for each in held
        if each.survivor.is_below
        and not any(id(holder.item) in own for holder in each.survivor.holders)
    ]
    hanging = _growing_groups(below, (lambda each: id(each.survivor.item), _BY_LINE), span)
    for group in hanging:
        group.is_below = True
    return groups + hanging


def _growing_groups(
    held: list[LeftBlock], keys: Sequence[Callable[[LeftBlock], Hashable]], span: Span
) -> list[Group]:
    """Group by the first key and return the groups that grow; group the rest by the next key."""
    groups = []
    for key in keys:
        alike: dict[Hashable, list[LeftBlock]] = {}
        for each in held:
            alike.setdefault(key(each), []).append(each)
        held = []
        for several in alike.values():
            judgement = judge(left_by_step(several), span)
            if judgement is None:
                held += several
            else:
                wanted = [each for each in several if each.step in span.before_last]
                groups.append(Group(wanted, judgement))
    return groups


def merge_groups(groups: Sequence[Group], labels: Sequence[Hashable], span: Span) -> list[Group]:
    """Merge groups that have the same label; those with None stay apart."""
    alike: dict[Hashable, list[Group]] = {}
    for group, label in zip(groups, labels, strict=True):
        alike.setdefault(id(group) if label is None else label, []).append(group)
    found = []
    for several in alike.values():
        held = [each for group in several for each in group.held]
        judgement = judge(left_by_step(held), span) if len(several) > 1 else None
        if judgement is None:
            found += several
        else:
            found.append(Group(held, judgement, several[0].is_below))
    return found


def name_key(held: Sequence[LeftBlock]) -> Callable[[LeftBlock], Hashable]:
    """Return a key function that tells blocks of one line apart by name and role."""
    heads: dict[int, set[str]] = {}
    for each in held:
        heads.setdefault(each.birth, set()).add(_head(each))
    # a copy of a model has thousands of names
    many = {birth for birth, several in heads.items() if len(several) > _MAX_NAMES}

    def by_name(held: LeftBlock) -> Hashable:
        birth = held.birth
        return birth, "" if birth in many else _head(held), held.survivor.role

    return by_name


def _head(held: LeftBlock) -> str:
    """Return a name up to a bracket, without numbers: ``history`` of ``history[3].loss``."""
    head = _HEAD.match(held.survivor.name)
    return _NUMBER.sub("", head[0]) if head else ""
