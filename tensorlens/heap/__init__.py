"""The Python heap: which objects are of given types, and who holds each of some objects."""

from tensorlens.heap.frames import anchors, tuples
from tensorlens.heap.frames import note as no_locals
from tensorlens.heap.holders import UNREACHABLE, find_holders, instances, live_objects, select
from tensorlens.heap.native import note as not_native
from tensorlens.heap.near import Heap, near_heap
from tensorlens.lazy import attach

__all__ = [
    "UNREACHABLE",
    "Heap",
    "anchors",
    "find_holders",
    "instances",
    "live_objects",
    "near_heap",
    "no_locals",
    "not_native",
    "select",
    "tuples",
]

attach(
    __name__,
    {
        "fallback": ("without_tuples",),
        "paths": ("cycle", "reference_paths"),
        "reference_names": ("KEPT",),
    },
)
