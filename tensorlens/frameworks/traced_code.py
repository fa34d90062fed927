"""Figures of the graphs that have nodes of a profiled function, and what follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Bytes that nodes were handed, over all calls of their graphs."""

    hits: int
    """Calls in which they were handed anything."""
    allocated: int
    """The most that was handed out in one call."""
    peak: int
    """The most of it that was there at once."""
    net: int
    """Bytes of it still there when a call ended, summed over the hits."""
    net_max: int
    """The largest of a single call."""
    net_first: int
    """That of the first call."""


@dataclass(frozen=True, slots=True)
class TracedFigures:
    """Figures of the graphs that have nodes of one function."""

    device: str
    calls: int
    """How often such a graph was called; a gradient function that is called by itself, as a tape
    around a graph does, is part of the call before it."""
    lines: Mapping[int, NodeFigures]
    """Line number to what the nodes were handed that it made, itself or by what it called."""
    backward: Mapping[int, NodeFigures]
    """Line number to what the gradients of these nodes took."""
    whole: NodeFigures
    """The same of all nodes of these graphs, whoever made them."""
    growth: int
    """By how much the device grew from the first call's start to the last one's end."""
    compiler: Literal["XLA"] | None
    """Compiler of these graphs, which have no nodes when they run."""
    notes: tuple[str, ...]


class TracedCode(Protocol):
    """Follows the graphs that have nodes of one function's lines."""

    def resume(self) -> None:
        """Count from now on."""
        ...

    def pause(self) -> None:
        """Count no more."""
        ...

    def figures(self) -> TracedFigures | None:
        """Return what was counted; None where no graph with such nodes was called."""
        ...

    def clear(self) -> None:
        """Forget what was counted."""
        ...
