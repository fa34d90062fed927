"""The Python heap: which objects are of given types, and who holds each of some objects."""

from tensorlens.frameworks.heap.frames import anchors, tuples
from tensorlens.frameworks.heap.frames import note as no_locals
from tensorlens.frameworks.heap.holders import hold, living, select
from tensorlens.frameworks.heap.native import note as not_native

__all__ = ["anchors", "hold", "living", "no_locals", "not_native", "select", "tuples"]
