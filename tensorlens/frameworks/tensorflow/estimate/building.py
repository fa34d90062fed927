"""In which order the nodes of a graph are made of its definition.

Of those whose sources are all there, the one that is defined first
(``core/common_runtime/graph_constructor.cc``, TensorFlow 2.21).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def built(sources: Sequence[Sequence[int]], back: Collection[int] = ()) -> list[int]:
    """Return the places of nodes in their definition, in the order in which they are made.

    Args:
        sources: of each node, the places of those that it reads or comes after.
        back: places of those that end a pass through a loop, for which nobody waits.
    """
    readers: list[list[int]] = [[] for _ in sources]
    waiting = [0] * len(sources)
    for place, each in enumerate(sources):
        for source in each:
            if source not in back:
                readers[source].append(place)
                waiting[place] += 1
    ready = [place for place, count in enumerate(waiting) if not count]
    found = []
    while ready:
        place = heapq.heappop(ready)
        found.append(place)
        for reader in readers[place]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return found
