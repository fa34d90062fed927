"""The part of the heap that a search has seen: objects, who refers to them, and where paths begin.

Paths begin at modules' globals, classes, variables of running functions, which are known by the
addresses of what they refer to. Nothing of the profiler's own is a beginning.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from types import CellType, FrameType, FunctionType
from typing import Any

from tensorlens.heap.attributes import MODULES, is_subtype, module_of_type, vars_of_module
from tensorlens.heap.frames import OWN, function_name, locals_of, suspension, why_no_locals
from tensorlens.user_code import is_foreign

_PACKAGE = "tensorlens"


class RootKind(IntEnum):
    """Where a path begins."""

    GLOBAL = 0
    CLASS = 1
    LOCAL = 2
    """A variable of a running function."""
    GIVEN = 3
    """An object that only the profiler holds, since it was given it."""
    UNSEEN = 4
    """A holder that cannot be seen."""
    CUT = 5
    """Where the search stopped."""


NAMESPACES = (RootKind.GLOBAL, RootKind.CLASS)
"""Roots whose holders are not asked for."""


@dataclass(frozen=True, slots=True)
class PathRoot:
    """Where a path begins: its kind, and a name whose meaning depends on the kind."""

    kind: RootKind
    name: str = ""


MOST_HOLDERS = 200
"""How many holders of one object are known at most."""

PLAIN = (list, dict, set, frozenset, CellType)
"""Types of containers without a name of their own; tuples are known by ``items``."""


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
    """Whether the collector was asked who refers to it."""
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


_KIND_ORDER = {RootKind.GIVEN: 1, RootKind.UNSEEN: 1, RootKind.CUT: 2}


@dataclass(frozen=True, slots=True)
class NodePath:
    """Nodes from where a path begins to its target, and the beginning."""

    root: PathRoot
    nodes: tuple[PathNode, ...]

    @property
    def holder_address(self) -> int:
        """The address of what holds the target."""
        return self.nodes[-2].address if len(self.nodes) > 1 else 0

    @property
    def rank(self) -> tuple[int, int]:
        """Order of paths: known beginnings first, then the shortest."""
        return _KIND_ORDER.get(self.root.kind, 0), len(self.nodes)


class RootTable:
    """Where paths begin, by address."""

    def __init__(self) -> None:
        self.roots: dict[int, list[PathRoot]] = {}
        self.own_globals: set[int] = set()
        self.variables: Counter[int] = Counter()
        """How many variables of running functions refer to an address, the profiler's included."""
        self._in_libraries: dict[int, PathRoot] = {}
        self.reads_variables = not why_no_locals()
        for name, module in dict.copy(sys.modules).items():
            if type(name) is str and is_subtype(type(module), MODULES):
                self._add_globals(id(vars_of_module(module)), name)
        frames = sys._current_frames()
        try:
            for thread in frames:
                frame: FrameType | None = frames[thread]
                while frame is not None:
                    self._add_frame(frame)
                    frame = frame.f_back
        finally:
            # this function's own frame is among them: a cycle
            frames.clear()
        for address, root in self._in_libraries.items():
            self.roots.setdefault(address, [root])

    def _add_globals(self, address: int, name: str) -> None:
        if is_own_name(name):
            self.own_globals.add(address)
        elif address not in self.roots:
            self.roots[address] = [PathRoot(RootKind.GLOBAL, "" if name == "__main__" else name)]

    def _add_frame(self, frame: FrameType) -> None:
        code = frame.f_code
        is_own = code.co_filename.startswith(OWN)
        if not is_own and id(frame.f_globals) not in self.roots:
            self._add_globals(id(frame.f_globals), namespace_name(frame.f_globals))
        label = f"{function_name(code)}(): "
        # module-level code and class bodies keep their variables in a dict
        if code.co_flags & inspect.CO_NEWLOCALS:
            for name, address, content, references in locals_of(frame):
                # a cell is a variable's own place; where only its content is known, that is it
                place = address or content
                self.variables[place] += references
                if not is_own and not name.startswith("."):
                    root = PathRoot(RootKind.LOCAL, label + name)
                    if is_foreign(code.co_filename):
                        # many of them pass on the same; one is enough, the user's are better
                        self._in_libraries.setdefault(place, root)
                    else:
                        self._add_root(place, root)

    def _add_root(self, address: int, root: PathRoot) -> None:
        if address:
            known = self.roots.setdefault(address, [])
            if root not in known:
                known.append(root)


def namespace_name(variables: Any) -> str:
    """Return what the globals of a module or of executed code are called."""
    name = dict.get(variables, "__name__") if type(variables) is dict else None
    return name if type(name) is str else "<globals>"


def is_own_name(name: Any) -> bool:
    """Tell whether a module belongs to the profiler."""
    return type(name) is str and (name == _PACKAGE or name.startswith(_PACKAGE + "."))


def is_own(holder: Any) -> bool:
    """Tell whether an object belongs to the profiler, by its type or its code."""
    kind = type(holder)
    if kind is FunctionType:
        return is_own_name(holder.__module__)
    if kind is FrameType:
        return bool(holder.f_code.co_filename.startswith(OWN))
    if (names := suspension(kind)) is not None:
        return bool(getattr(holder, names.code).co_filename.startswith(OWN))
    return is_own_type(holder if is_subtype(kind, type) else kind)


def is_own_type(kind: type) -> bool:
    """Tell whether a class belongs to the profiler."""
    try:
        return is_own_name(module_of_type(kind))
    except AttributeError:
        return False


def is_running(holder: Any) -> bool:
    """Tell whether a generator runs: then its variables are those of a running function."""
    names = suspension(type(holder))
    return names is not None and bool(getattr(holder, names.running))
