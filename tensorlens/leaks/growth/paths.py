"""Paths to several items, some of which may be None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.heap.paths import cycle, reference_paths
from tensorlens.records.references import ReferencePath


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
