"""Describes retained memory: its line, an example, what hangs below it and who holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.advice import Words
from tensorlens.frameworks.base import LeftBlocks
from tensorlens.frameworks.survivors import Holdings, Retained, Survivor
from tensorlens.heap.paths import cycle, reference_paths
from tensorlens.leaks.growth.groups import (
    Group,
    LeftBlock,
    merged_groups,
)
from tensorlens.leaks.growth.growth_test import UNCLEAR, Judgement
from tensorlens.leaks.growth.samples import LoopSamples, frees_as_much, steps_of
from tensorlens.leaks.report import Example
from tensorlens.records.references import Reference, ReferencePath
from tensorlens.records.tensors import SourceLine
from tensorlens.render.figures import counted


def has_end(reference: Reference) -> bool:
    """Tell whether a container has one: a deque, a cache, a list with places left."""
    return reference.limit is not None or bool(reference.spare)


def filling(path: ReferencePath, others: Sequence[ReferencePath]) -> Reference | None:
    """Return the container on a path that has an end and where ``others`` take another place.

    The others lead to what an earlier step left. What both paths share up to there is only where
    the container is kept.
    """
    mine = path.references
    apart = max((_common(mine, other.references) for other in others), default=0)
    # a cache, a set and a queue do not tell places apart
    same = [each for each in mine[:apart] if "[" not in each.text]
    return next(filter(has_end, (*mine[apart : apart + 1], *same)), None)


def end_of(container: Reference) -> str:
    """Return where a container ends."""
    if container.limit is not None:
        return f"it ends at {counted(container.limit, 'item')}"
    are = "is" if container.spare == 1 else "are"
    return f"{container.spare} of its {container.length} places {are} still free"


def _common(mine: Sequence[Reference], other: Sequence[Reference]) -> int:
    count = 0
    for first, second in zip(mine, other, strict=False):
        if first.text != second.text:
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class RetainedBelow:
    """Memory below a group that one line made, a step."""

    birth: int
    """A negative one is unknown."""
    role: str
    nbytes: float
    tensors: float


@dataclass(frozen=True, slots=True)
class RetainedGroup:
    """A group with all that is known of it; it refers to nothing of the program."""

    watched: LoopSamples
    judgement: Judgement
    birth: int
    blocks: tuple[LeftBlock, ...]
    role: str
    device: str
    example: Example
    is_in_array: bool
    is_unseen: bool
    words: Words
    bytes_per_step: float = 0.0
    """With what hangs below."""
    paths: tuple[ReferencePath, ...] = ()
    bounds: tuple[Reference | None, ...] = ()
    """For each path the container on it that is filling up and has an end, if it is one."""
    cycle: ReferencePath | None = None
    is_garbage: bool = False
    """Whether the collector has freed it."""
    is_replaced: bool = False
    """Whether it is one tensor, that a larger one replaces in each step."""
    is_renewed: bool = False
    """Whether its lines free as much in each step as they make."""
    below: tuple[RetainedBelow, ...] = ()
    below_blocks: tuple[int, ...] = ()
    """The addresses of what hangs below."""
    taken: float = 1.0
    """How many bytes the allocator's figures count for each that was asked for."""
    nodes: float = 0.0
    """Nodes of autograd's graph that a step keeps."""
    is_population: bool = False
    """Whether each of it is freed some steps later, while more of it are made."""

    @property
    def line(self) -> SourceLine | None:
        """The line that made it."""
        return self.watched.steps.line(self.birth)

    @property
    def is_held(self) -> bool:
        """Whether a path from a root of Python's holds it, known from its beginning on."""
        return any(not path.is_cut for path in self.paths)

    @property
    def is_explained(self) -> bool:
        """Whether it is known that all of its blocks stay."""
        return not self.is_renewed and self.judgement.certainty != UNCLEAR


def described(
    groups: list[Group], holdings: Holdings, left: LeftBlocks, watched: LoopSamples
) -> list[RetainedGroup]:
    """Return all that is known of groups; those that one container holds are put together."""
    groups, paths = _merged(groups, paths_of([each.latest.item for each in groups]), watched)
    below = _charged(groups, holdings)
    items = [group.latest.item for group in groups]
    bounded = bounds_of(groups, paths)
    loops = cycles_of(items, paths)
    found = []
    for place, group in enumerate(groups):
        own, circle = paths[place], loops[place]
        hanging = _hanging(group, below[place], left, watched)
        one = below[place]
        if one.tensors:
            one = holdings.below(group.roots()[-1:], _roots(groups))
        each = described_alone(group, own, circle, one, holdings, left, watched)
        if below[place].tensors:
            example = replace(each.example, below=one.bytes, below_tensors=one.tensors)
            each = replace(each, example=example)
        nbytes = group.judgement.bytes_per_step + (
            0.0 if group.is_below else sum(part.nbytes for part in hanging)
        )
        found.append(
            replace(
                each,
                bytes_per_step=nbytes,
                bounds=bounded[place],
                is_renewed=frees_as_much(group, own, watched),
                below=hanging,
                below_blocks=tuple(address for address, _, _ in below[place].blocks),
                taken=_taken(group, below[place], left),
                nodes=_nodes(group, below[place], holdings, watched),
            )
        )
    return found


def _hanging(
    group: Group, below: Retained, left: LeftBlocks, watched: LoopSamples
) -> tuple[RetainedBelow, ...]:
    """Return what hangs below, by the line that made it and its role, the most bytes first."""
    judgement = group.judgement
    if group.is_below:
        blocks = [(each.block.birth, each.block.size, each.survivor.role) for each in group.held]
        share = judgement.bytes_per_step / max(1, group.nbytes)
    else:
        births = dict(zip(left.address, left.birth, strict=True))
        blocks = [(births.get(address, -1), size, role) for address, size, role in below.blocks]
        share = _share(group, watched)
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
            nbytes * share,
            tensors * (judgement.tensors_per_step / count if group.is_below else share),
        )
        for (birth, role), (nbytes, tensors) in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.nbytes))


def _share(group: Group, watched: LoopSamples) -> float:
    """Return the part of what hangs below a group that one step has made."""
    steps = len(steps_of(group, range(max(block.step for block in group.blocks) + 1)))
    return group.judgement.rate / max(1, steps) / watched.stride


def _nodes(group: Group, below: Retained, holdings: Holdings, watched: LoopSamples) -> float:
    if not group.is_below:
        return below.nodes * _share(group, watched)
    # one graph of all steps, begun perhaps before the watch: its bytes tell a step's part
    roots = group.roots()
    whole = holdings.below(roots, roots) if roots else below
    return whole.nodes * group.judgement.bytes_per_step / whole.bytes if whole.bytes else 0.0


def _taken(group: Group, below: Retained, left: LeftBlocks) -> float:
    """Return how many bytes an allocator's figures count for each byte that was asked for."""
    wanted = {block.address for block in group.blocks}.union(each[0] for each in below.blocks)
    rows = [row for row, address in enumerate(left.address) if address in wanted]
    size = sum(left.size[row] for row in rows)
    return sum(left.taken[row] for row in rows) / size if size else 1.0


def _merged(
    groups: list[Group], paths: list[list[ReferencePath]], watched: LoopSamples
) -> tuple[list[Group], list[list[ReferencePath]]]:
    """Put groups of the same lines together that the same container holds.

    Not what hangs below something else with what is held itself: below that, more may hang.
    """
    labels = [
        (tuple(sorted(group.births)), group.is_below, container_path(own[0])) if own else None
        for group, own in zip(groups, paths, strict=True)
    ]
    merged = merged_groups(groups, labels, watched.span)
    of_item = {id(group.latest.item): own for group, own in zip(groups, paths, strict=True)}
    return merged, [of_item[id(group.latest.item)] for group in merged]


def container_path(path: ReferencePath) -> tuple[str, ...]:
    """Return a path up to the first place that is one of many."""
    texts = [reference.text for reference in path.references]
    for at, text in enumerate(texts):
        if "[" in text or "{" in text:
            return *texts[:at], text.partition("[")[0]
    return tuple(texts)


def paths_of(items: Sequence[Any]) -> list[list[ReferencePath]]:
    """Return the paths that hold each item; none where there is no item."""
    paths = iter(reference_paths([item for item in items if item is not None]))
    return [next(paths) if item is not None else [] for item in items]


def cycles_of(
    items: Sequence[Any], paths: Sequence[Sequence[ReferencePath]]
) -> list[ReferencePath | None]:
    """Return the cycle that holds each item that nothing else does."""
    found: list[ReferencePath | None] = []
    # by their places: an iterator would be found to hold them
    for place in range(len(items)):
        wanted = items[place] is not None and not paths[place]
        found.append(cycle(items[place]) if wanted else None)
    return found


def bounds_of(
    groups: Sequence[Group], paths: Sequence[list[ReferencePath]]
) -> list[tuple[Reference | None, ...]]:
    """Return for each path to the latest of each group the container that is filling up."""
    bounded = [
        place
        for place, own in enumerate(paths)
        if own and all(any(map(has_end, path.references)) for path in own)
    ]
    earlier = paths_of([groups[place].earliest.item for place in bounded])
    found: list[tuple[Reference | None, ...]] = [() for _ in groups]
    for place, others in zip(bounded, earlier, strict=True):
        found[place] = tuple(filling(path, others) for path in paths[place])
    return found


def _roots(groups: Sequence[Group]) -> list[Any]:
    return [item for group in groups if not group.is_below for item in group.roots()]


def _charged(groups: Sequence[Group], holdings: Holdings) -> list[Retained]:
    """Return what hangs below each group, each of it charged to one group alone."""
    nothing = Retained(0, 0, ())
    below = {id(group): nothing for group in groups}
    owners = [group for group in groups if not group.is_below and group.roots()]
    everything = _roots(groups)
    alone = [(holdings.below(group.roots(), everything).bytes, group) for group in owners]
    alone.sort(key=lambda pair: -pair[0])
    # what two groups share goes to the one with more
    ordered = [group for _, group in alone]
    for place, group in enumerate(ordered):
        below[id(group)] = holdings.below(group.roots(), _roots(ordered[place:]))
    return [below[id(group)] for group in groups]


def described_alone(
    group: Group,
    paths: Sequence[ReferencePath],
    circle: ReferencePath | None,
    below: Retained,
    holdings: Holdings,
    left: LeftBlocks,
    watched: LoopSamples,
) -> RetainedGroup:
    """Return what is known of a group by itself, with the path on to what hangs below."""
    latest = group.latest
    survivor = latest.survivor
    birth = latest.block.birth
    example = _example_of(survivor, (watched.count - latest.block.step) * watched.stride)
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
        cycle=circle,
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
    """Return the tensor that all of a group hangs below, and the line that makes it."""
    latest = group.latest
    root = holdings.root(latest.item)
    several = len({id(each.item) for each in group.held}) > 1
    judged = [each for each in group.held if not several or each.item is latest.item]
    age = (watched.count - latest.block.step) * watched.stride
    birth = next(iter(group.births))
    rows = [row for row, address in enumerate(left.address) if address and address == root.address]
    if rows and left.step[rows[0]] >= watched.warmup:
        birth = left.birth[rows[0]]
        age = (watched.count - left.step[rows[0]]) * watched.stride
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
