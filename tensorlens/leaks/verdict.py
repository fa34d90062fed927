"""The verdict on some steps: what grows, which line made it, who holds it, and what does not."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorlens.frameworks.base import StepFigures, Steps
from tensorlens.frameworks.heap.paths import cycle, paths
from tensorlens.frameworks.survivors import Below, Holdings
from tensorlens.leaks.advice import Facts, advice
from tensorlens.leaks.groups import Block, Group, candidates, grouped, growing_lines
from tensorlens.leaks.steady import NONE, UNCLEAR, Judgement, growing
from tensorlens.records.leaks import Example, Growth, Leak, LeakReport, Reference, ReferencePath
from tensorlens.units import format_bytes

_MOST_BLOCKS = 20_000
"""Blocks whose holders are looked for; of more, those of the earliest and the latest steps."""
_MOST_GROUPS = 20
"""Groups whose paths are searched for, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of a loop."""

    steps: Steps
    figures: tuple[StepFigures, ...]
    """Before the first step, and after each one."""
    warmup: int

    @property
    def count(self) -> int:
        """How many steps were watched, the warm-up included."""
        return len(self.figures) - 1

    @property
    def judged(self) -> range:
        """The steps that are judged: after the warm-up, without the last, which may be in use."""
        return range(self.warmup, self.count - 1)


@dataclass(frozen=True, slots=True)
class _Found:
    """A group with all that is known of it; it refers to nothing of the program."""

    judgement: Judgement
    birth: int
    blocks: tuple[Block, ...]
    role: str
    device: str
    example: Example
    below: Below
    below_steps: int
    paths: tuple[ReferencePath, ...]
    cycle: ReferencePath | None
    is_in_array: bool
    is_unseen: bool


def verdict(watched: Watched) -> LeakReport:
    """Return what grew in the steps that were watched.

    The collector runs once, at the end: what it frees is told as garbage and not as a leak.
    """
    steps = watched.judged
    if len(steps) < 1:
        text = f"too few steps to tell: {watched.count} with {watched.warmup} of warm-up"
        return _report(watched, (), (), text)
    found = _look(watched)
    alive = _alive_after_collection(watched, found)
    leaks: list[Leak] = []
    others: list[Growth] = []
    for each in found:
        other = _no_leak(each, alive, watched)
        if other is not None:
            others.append(other)
        elif each.judgement.certainty == UNCLEAR:
            others.append(_unclear(each, watched))
        else:
            leaks.append(_leak(each, watched))
    leaks.sort(key=lambda leak: -leak.bytes_per_step)
    others += _reserved(watched, leaks)
    return _report(watched, tuple(leaks), tuple(others), _sentence(watched, leaks, others))


def _look(watched: Watched) -> list[_Found]:
    steps = watched.judged
    left = watched.steps.left(watched.warmup)
    if left is None:
        return []
    blocks = _few(candidates(left, steps), steps)
    holdings = watched.steps.holdings([block.address for block in blocks])
    groups = grouped(blocks, holdings.survivors)
    judged = [(group, group.judged(steps)) for group in groups]
    found = _described([pair for pair in judged if pair[1].certainty != NONE], holdings, watched)
    del holdings, groups, judged
    known = frozenset(block.birth for block in blocks)
    return found + _replaced(watched, known)


def _few(blocks: list[Block], steps: Sequence[int]) -> list[Block]:
    if len(blocks) <= _MOST_BLOCKS:
        return blocks
    ordered = sorted(blocks, key=lambda block: (block.birth, block.step))
    every = -(-len(ordered) // _MOST_BLOCKS)
    return ordered[::every]


def _described(
    groups: list[tuple[Group, Judgement]], holdings: Holdings, watched: Watched
) -> list[_Found]:
    groups = sorted(groups, key=lambda pair: -sum(block.size for block in pair[0].blocks))
    groups = groups[:_MOST_GROUPS]
    everything = [item for group, _ in groups for item in group.roots(watched.judged)]
    items = [_holder_of(group) for group, _ in groups]
    ways = iter(paths([item for item in items if item is not None]))
    found = []
    for (group, judgement), item in zip(groups, items, strict=True):
        own = next(ways) if item is not None else []
        circle = cycle(item) if item is not None and not own else None
        found.append(_found(group, judgement, own, circle, holdings, everything, watched))
    return found


def _holder_of(group: Group) -> object | None:
    """Return the object whose holders are to be found: of the latest step's survivor."""
    if group.root is not None:
        root: object = group.root
        return root
    latest = group.latest
    for items in (latest.tensors, latest.arrays, latest.storages):
        if items:
            item: object = items[0]
            return item
    return latest.holders[0].item if latest.holders else None


def _found(
    group: Group,
    judgement: Judgement,
    ways: list[ReferencePath],
    circle: ReferencePath | None,
    holdings: Holdings,
    everything: list[object],
    watched: Watched,
) -> _Found:
    latest = group.latest
    steps = watched.judged
    roots = group.roots(steps)
    below = Below(0, 0, ())
    if group.root is None and latest.tensors:
        below = holdings.below(roots, everything)
    one = holdings.below(roots[-1:], everything) if below.tensors else below
    onward = one.references
    if group.root is not None and latest.holders:
        onward = latest.holders[0].references
    if not ways and latest.cycle:
        circle = ReferencePath(latest.cycle)
    last = max(block.step for block in group.blocks)
    example = Example(
        name=latest.name,
        dtype=latest.dtype,
        shape=latest.shape,
        nbytes=latest.shown or latest.size,
        storage_nbytes=latest.size,
        grad_fn=latest.grad_fn,
        age=watched.count - last,
        below=one.bytes,
        below_tensors=one.tensors,
    )
    return _Found(
        judgement=judgement,
        birth=group.birth if group.root is None else _birth_of_root(group),
        blocks=tuple(group.blocks),
        role=latest.role,
        device=latest.device or "cpu",
        example=example,
        below=below,
        below_steps=len(steps),
        paths=tuple(replace(way, references=(*way.references, *onward)) for way in ways),
        cycle=circle,
        is_in_array=bool(latest.arrays) and not latest.tensors,
        is_unseen=latest.is_held_unseen,
    )


def _birth_of_root(group: Group) -> int:
    """Return the line that made most bytes of what hangs below a root."""
    totals: dict[int, int] = {}
    for block in group.blocks:
        totals[block.birth] = totals.get(block.birth, 0) + block.size
    return max(totals, key=lambda birth: totals[birth])


def _replaced(watched: Watched, known: frozenset[int]) -> list[_Found]:
    """Return lines whose one block is replaced by a larger one in each step."""
    figures = [each.lines for each in watched.figures[watched.warmup + 1 :]]
    if len(figures) < 2:
        return []
    grown = []
    for birth, counts, levels in growing_lines(figures, known):
        judgement = growing(levels)
        if birth >= 0 and judgement is not None and max(counts) == min(counts):
            grown.append((birth, judgement))
    left = watched.steps.left(watched.warmup) if grown else None
    if left is None:
        return []
    groups = []
    for birth, judgement in grown:
        rows = [row for row, each in enumerate(left.birth) if each == birth]
        if rows:
            row = max(rows, key=lambda row: left.size[row])
            block = Block(left.address[row], left.size[row], birth, left.step[row])
            groups.append((Group(birth, [block]), judgement))
    holdings = watched.steps.holdings([group.blocks[0].address for group, _ in groups])
    for (group, _), survivor in zip(groups, holdings.survivors, strict=True):
        group.survivors.append(survivor)
    return _described(groups, holdings, watched)


def _alive_after_collection(watched: Watched, found: Sequence[_Found]) -> frozenset[int]:
    """Return the addresses that are still in use when the collector has run, where it matters."""
    if all(each.paths for each in found):
        return frozenset(block.address for each in found for block in each.blocks)
    gc.collect()
    left = watched.steps.left(watched.warmup)
    return frozenset(() if left is None else left.address)


def _no_leak(found: _Found, alive: frozenset[int], watched: Watched) -> Growth | None:
    """Return why a group is no leak, if it is none."""
    nbytes = _bytes_per_step(found)
    where = watched.steps.line(found.birth)
    what = f"{_rate(found.judgement, nbytes)}, made at {where}"
    if not found.paths and not any(block.address in alive for block in found.blocks):
        circle = f": {found.cycle}" if found.cycle is not None else ""
        text = f"{what}: garbage that waited for the collector, a cycle{circle}"
        return Growth("garbage", text, nbytes, str(found.cycle or ""))
    bound = next(filter(None, map(_filling, found.paths)), None)
    if bound is not None and all(map(_filling, found.paths)):
        text = f"{what}: {bound.text} is filling up, it ends at {bound.limit} items"
        return Growth("filling", text, nbytes, str(found.paths[0]))
    return None


def _filling(path: ReferencePath) -> Reference | None:
    """Return the bounded container on the way, if there is one."""
    return next((each for each in path.references if each.limit is not None), None)


def _unclear(found: _Found, watched: Watched) -> Growth:
    nbytes = _bytes_per_step(found)
    where = watched.steps.line(found.birth)
    text = f"{_rate(found.judgement, nbytes)}, made at {where}: {found.judgement.reason}"
    return Growth("unclear", text, nbytes, str(found.paths[0]) if found.paths else "")


def _leak(found: _Found, watched: Watched) -> Leak:
    facts = Facts(len(watched.judged), found.is_in_array, found.cycle is not None)
    reason = found.judgement.reason
    if not found.paths and found.cycle is not None:
        reason += "; a cycle through autograd holds it, which the collector cannot free"
    elif found.is_unseen or not found.paths:
        reason += "; what holds it cannot be seen from Python"
    return Leak(
        born=watched.steps.line(found.birth),
        tensors_per_step=found.judgement.tensors_per_step,
        bytes_per_step=_bytes_per_step(found),
        path=str(found.paths[0]) if found.paths else str(found.cycle or ""),
        paths=found.paths,
        role=found.role,
        device=found.device,
        example=found.example,
        certainty=found.judgement.certainty,
        reason=reason,
        advice=advice(found.paths, found.example, facts),
    )


def _bytes_per_step(found: _Found) -> float:
    below = found.below.bytes / found.below_steps if found.below_steps else 0.0
    return found.judgement.bytes_per_step + below


def _rate(judgement: Judgement, nbytes: float) -> str:
    tensors = judgement.tensors_per_step
    count = f"{tensors:g} tensors" if tensors != 1 else "1 tensor"
    return f"{count}, {format_bytes(round(nbytes))} a step"


def _reserved(watched: Watched, leaks: Sequence[Leak]) -> list[Growth]:
    """Return devices whose allocator took more while what is allocated stayed."""
    found = []
    for device in watched.figures[-1].reserved:
        if device == "cpu":
            continue
        allocated = _levels(watched, device, reserved=False)
        reserved = _levels(watched, device, reserved=True)
        if growing(reserved) is not None and growing(allocated) is None:
            mean = (reserved[-1] - reserved[0]) / (len(reserved) - 1)
            text = (
                f"{device} reserved grew {format_bytes(round(mean))} a step while what is "
                "allocated did not: the allocator's cache, or fragmentation"
            )
            found.append(Growth("reserved", text, mean))
    return found


def _levels(watched: Watched, device: str, reserved: bool) -> list[int]:
    figures = watched.figures[watched.warmup :]
    sources = [each.reserved if reserved else each.allocated for each in figures]
    return [source.get(device, 0) for source in sources]


def _sentence(watched: Watched, leaks: Sequence[Leak], others: Sequence[Growth]) -> str:
    count = len(watched.judged)
    if leaks:
        tensors = sum(leak.tensors_per_step for leak in leaks)
        nbytes = sum(leak.bytes_per_step for leak in leaks)
        each = "tensor" if tensors == 1 else "tensors"
        return (
            f"leak: {tensors:g} {each} and {format_bytes(round(nbytes))} stay behind in each step"
        )
    if any(each.kind == "unclear" for each in others):
        return f"not clear after {count} steps: something grew, but not in each of them"
    return f"no leak: nothing stays behind in each of {count} steps"


def _report(
    watched: Watched, leaks: tuple[Leak, ...], others: tuple[Growth, ...], text: str
) -> LeakReport:
    devices = watched.figures[-1].allocated
    return LeakReport(
        leaks=leaks,
        others=others,
        steps=max(0, watched.count - watched.warmup),
        warmup=min(watched.warmup, watched.count),
        allocated={
            device: tuple(each.allocated.get(device, 0) for each in watched.figures[1:])
            for device in devices
        },
        verdict=text,
    )
