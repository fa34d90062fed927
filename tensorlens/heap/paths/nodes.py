"""The part of the heap that a search has seen: objects, who refers to them, paths among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CellType
from typing import Any

GLOBAL, CLASS, LOCAL, HELD, UNKNOWN, CUT = range(6)
"""Where a path begins.

In the globals of a module, a class, a variable of a running function, what only the profiler was
given, a holder that cannot be seen, where the search stopped.
"""

NO_MORE = (GLOBAL, CLASS)
"""Of these nobody asks who holds them."""


@dataclass(frozen=True, slots=True)
class PathRoot:
    """Where a path begins: its kind, and a name whose meaning depends on the kind."""

    kind: int
    name: str = ""


MOST_HOLDERS = 200
"""How many holders of one object are known at most."""

PLAIN = (list, dict, set, frozenset, CellType)
"""Holder without a name of its own, such as a tuple."""


@dataclass(slots=True, eq=False)
class PathNode:
    """An object on a path; of a tuple only its address and its items are known."""

    address: int
    object: Any = None
    items: list[Any] | None = None
    roots: list[PathRoot] = field(default_factory=list)
    holders: list[PathNode] = field(default_factory=list)
    distance: int = 0
    references: int = 0
    """How many references to it have been found."""
    is_crowded: bool = False
    """Whether too many objects refer to it to look at all."""
    asked: bool = False
    own: bool = False
    """Whether the profiler refers to it."""

    def add_root(self, root: PathRoot) -> None:
        """Add where a path begins, once."""
        if root not in self.roots:
            self.roots.append(root)

    def add_holder(self, holder: PathNode) -> None:
        """Add who refers to it, once, unless there are far too many to tell."""
        if len(self.holders) < MOST_HOLDERS and not any(known is holder for known in self.holders):
            self.holders.append(holder)

    @property
    def is_plain(self) -> bool:
        """Whether it is a tuple or another mere container."""
        return self.items is not None or any(type(self.object) is plain for plain in PLAIN)


_LAST = {HELD: 1, UNKNOWN: 1, CUT: 2}


@dataclass(frozen=True, slots=True)
class NodePath:
    """Nodes from where a path begins to its target, and the beginning."""

    root: PathRoot
    nodes: tuple[PathNode, ...]

    @property
    def last(self) -> int:
        """The address of what holds the target."""
        return self.nodes[-2].address if len(self.nodes) > 1 else 0

    @property
    def rank(self) -> tuple[int, int]:
        """Order of paths: known beginnings first, then the shortest."""
        return _LAST.get(self.root.kind, 0), len(self.nodes)
