"""The Python heap: which objects are of given types, and who holds each of some objects."""

from tensorlens.frameworks.heap.frames import anchors
from tensorlens.frameworks.heap.holders import hold, select

__all__ = ["anchors", "hold", "select"]
