"""Bounds of the containers on a path: a deque, a cache, a list filled place by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.heap.paths import cycle, reference_paths
from tensorlens.leaks.growth.groups import Group
from tensorlens.records.references import Reference, ReferencePath
from tensorlens.render.figures import counted


def paths_of(items: Sequence[Any]) -> list[list[ReferencePath]]:
    """Return the paths that hold each item; none for None."""
    paths = iter(reference_paths([item for item in items if item is not None]))
    return [next(paths) if item is not None else [] for item in items]


def cycles_of(
    items: Sequence[Any], paths: Sequence[Sequence[ReferencePath]]
) -> list[ReferencePath | None]:
    """Return the cycle that holds each item without a path."""
    found: list[ReferencePath | None] = []
    # by index: an iterator would be found as a holder
    for place in range(len(items)):
        wanted = items[place] is not None and not paths[place]
        found.append(cycle(items[place]) if wanted else None)
    return found


def container_path(path: ReferencePath) -> tuple[str, ...]:
    """Return the texts of a path up to its first container with several places."""
    texts = [reference.text for reference in path.references]
    for at, text in enumerate(texts):
        if "[" in text or "{" in text:
            return *texts[:at], text.partition("[")[0]
    return tuple(texts)


def has_end(reference: Reference) -> bool:
    """Return whether a container has a bound."""
    return reference.limit is not None or bool(reference.spare)


def filling(path: ReferencePath, others: Sequence[ReferencePath]) -> Reference | None:
    """Return the container with a bound on a path, in which ``others`` take another place.

    The others lead to a block of an earlier step. A reference that both paths share before they
    part is only where the container is kept.
    """
    mine = path.references
    apart = max((_common(mine, other.references) for other in others), default=0)
    # a cache, a set and a queue do not tell places apart
    same = [each for each in mine[:apart] if "[" not in each.text]
    return next(filter(has_end, (*mine[apart : apart + 1], *same)), None)


def end_of(container: Reference) -> str:
    """Describe the bound of a container."""
    if container.limit is not None:
        return f"it ends at {counted(container.limit, 'item')}"
    are = "is" if container.spare == 1 else "are"
    return f"{container.spare} of its {container.length} places {are} still free"


def bounds_of(
    groups: Sequence[Group], paths: Sequence[list[ReferencePath]]
) -> list[tuple[Reference | None, ...]]:
    """Return the container that is filling up on each path to the latest block of each group."""
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


def _common(mine: Sequence[Reference], other: Sequence[Reference]) -> int:
    count = 0
    for first, second in zip(mine, other, strict=False):
        if first.text != second.text:
            break
        count += 1
    return count
