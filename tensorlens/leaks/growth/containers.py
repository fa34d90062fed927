"""Containers on the paths that hold blocks, and their bounds: a deque, a cache, a list to fill."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from tensorlens.heap.paths import reference_paths
from tensorlens.leaks.growth.groups import Group
from tensorlens.records.references import Reference, ReferencePath
from tensorlens.render.figures import counted


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
    """Return the container with a bound at which a path parts from ``others``, or None.

    The others lead to a block of an earlier step. Containers before that place only keep this one,
    except those whose text has no index: a cache, a set and a queue.
    """
    mine = path.references
    apart = max((_common(mine, other.references) for other in others), default=0)
    # two places in these have the same text
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
    earlier = reference_paths([groups[place].earliest.survivor.item for place in bounded])
    found: list[tuple[Reference | None, ...]] = [() for _ in groups]
    for place, others in zip(bounded, earlier, strict=True):
        found[place] = tuple(filling(path, others) for path in paths[place])
    return found


def _common(mine: Sequence[Reference], other: Sequence[Reference]) -> int:
    pairs = zip(mine, other, strict=False)
    return len([*takewhile(lambda pair: pair[0].text == pair[1].text, pairs)])
