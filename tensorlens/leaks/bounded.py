"""Containers that come to an end: full, they take no more or drop what is oldest."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.leaks import Reference, ReferencePath


def bound(reference: Reference) -> Reference | None:
    """Return a reference to a container with a bound: a deque, a cache, a list with places left."""
    return reference if reference.limit is not None or reference.spare else None


def filling(way: ReferencePath, others: Sequence[ReferencePath]) -> Reference | None:
    """Return the container on a way that has an end and where ``others`` take another place.

    The others lead to what an earlier step left. What both ways share up to there is only where
    the container is kept.
    """
    mine = way.references
    apart = max((_common(mine, other.references) for other in others), default=0)
    # a cache, a set and a queue do not tell places apart
    same = [each for each in mine[:apart] if "[" not in each.text]
    return next(filter(bound, (*mine[apart : apart + 1], *same)), None)


def end_of(container: Reference) -> str:
    """Return where a container ends."""
    if container.limit is not None:
        return f"it ends at {container.limit} items"
    return f"{container.spare} of its {container.length} places are still free"


def _common(mine: Sequence[Reference], other: Sequence[Reference]) -> int:
    count = 0
    for first, second in zip(mine, other, strict=False):
        if first.text != second.text:
            break
        count += 1
    return count
