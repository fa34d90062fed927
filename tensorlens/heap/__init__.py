"""The Python heap: which objects are of given types, and who holds each of some objects."""

from tensorlens.heap.frames import anchors
from tensorlens.heap.holders import UNREACHABLE, find_holders, why_no_names
from tensorlens.heap.native import why_not_native
from tensorlens.heap.objects import Heap, instances, live_objects, near_heap, select
from tensorlens.lazy import attach

__all__ = [
    "UNREACHABLE",
    "Heap",
    "anchors",
    "find_holders",
    "instances",
    "live_objects",
    "near_heap",
    "select",
    "why_no_names",
    "why_not_native",
]

attach(
    __name__,
    {
        "objects": ("without_tuples",),
        "paths": ("cycle", "reference_paths"),
        "reference_names": ("KEPT_BY_TRACEBACK",),
    },
)
