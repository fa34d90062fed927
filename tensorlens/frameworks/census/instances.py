"""The living instances of classes."""

from __future__ import annotations

from typing import Any

from tensorlens import heap


def live_instances(*kinds: type) -> list[Any]:
    """Return all objects of these classes, and of those derived from them, that are alive.

    What is not tracked by the garbage collector, and what ``gc.freeze()`` set aside, is not seen.
    """
    found: dict[int, Any] = {}
    for each in heap.select(heap.live_objects(), kinds):
        found.update((id(item), item) for item in each)
    return [*found.values()]
