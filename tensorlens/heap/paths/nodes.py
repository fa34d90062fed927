"""The part of the heap that a search has seen: objects, their holders and the roots of paths.

Roots are modules' globals, classes and variables of running functions; they are known by the
addresses of the objects they refer to. The profiler's own are no roots.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from types import CellType, FrameType, FunctionType
from typing import Any

from tensorlens.heap.attributes import is_subtype, module_of_type, vars_of_module
from tensorlens.heap.frames import OWN, label, locals_of, modules, suspension, why_no_locals
from tensorlens.user_code import is_foreign

_PACKAGE = "tensorlens"


class RootKind(IntEnum):
    """Where a path begins."""

    GLOBAL = 0
    CLASS = 1
    LOCAL = 2
    """A variable of a running function."""
    GIVEN = 3
    """An object that only the profiler holds, such as the step function of find_leaks()."""
    UNSEEN = 4
    """A holder that cannot be seen."""
    CUT = 5
    """Where the search stopped."""


NAMESPACES = (RootKind.GLOBAL, RootKind.CLASS)
"""Roots whose holders are not searched."""


@dataclass(frozen=True, slots=True)
class PathRoot:
    """Where a path begins: its kind, and a name whose meaning depends on the kind."""

    kind: RootKind
    name: str = ""


PLAIN_TYPES = (list, dict, set, frozenset, CellType)
"""Types of containers without a name of their own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its holder an object is."""

    how: int
    """A :class:`~tensorlens.heap.native.How`."""
    index: int = 0
    """Index of an item."""
    key: str | None = None
    """A dict's key or an attribute's name; None if it is no ``str``."""
    text: str = ""
    """The key as it is shown."""


@dataclass(slots=True, eq=False)
class PathNode:
    """An object on a path. For a tuple only its address and its length are kept."""

    address: int
    object: Any = None
    length: int | None = None
    """Number of items of a tuple; None for other objects."""
    roots: list[PathRoot] = field(default_factory=list)
    holders: dict[PathNode, Place] = field(default_factory=dict)
    references: int = 0
    """Number of references to it that have been found."""
    is_crowded: bool = False
    """Whether it may have more holders than the search looked at."""
    asked: bool = False
    """Whether its holders were searched."""
    own: bool = False
    """Whether the profiler refers to it."""

    def add_root(self, root: PathRoot) -> None:
        """Add a root unless it is known."""
        if root not in self.roots:
            self.roots.append(root)

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple."""
        return self.length is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is a tuple or another container without a name of its own."""
        return self.is_tuple or any(type(self.object) is plain for plain in PLAIN_TYPES)


_KIND_ORDER = {RootKind.GIVEN: 1, RootKind.UNSEEN: 1, RootKind.CUT: 2}


@dataclass(frozen=True, slots=True)
class NodePath:
    """A root and the nodes from it to the target."""

    root: PathRoot
    nodes: tuple[PathNode, ...]

    @property
    def holder_address(self) -> int:
        """Address of the target's direct holder; 0 if the root refers to the target."""
        return self.nodes[-2].address if len(self.nodes) > 1 else 0

    @property
    def rank(self) -> tuple[int, int]:
        """Key to sort paths by: known roots first, then the shortest."""
        return _KIND_ORDER.get(self.root.kind, 0), len(self.nodes)


class RootTable:
    """Roots of paths by the address of the object that they refer to."""

    def __init__(self) -> None:
        self.roots: dict[int, list[PathRoot]] = {}
        self.globals: list[int] = []
        self.own_places: set[int] = set()
        """Addresses of the profiler's classes and of its modules' globals."""
        self.variables: Counter[int] = Counter()
        """How many variables of running functions, the profiler's too, refer to an address."""
        self._library_roots: dict[int, PathRoot] = {}
        self.reads_variables = not why_no_locals()
        for name, module in modules():
            content = vars_of_module(module)
            self._add_globals(id(content), name)
            if is_own_name(name):
                types = (
                    each for each in dict.copy(content).values() if is_subtype(type(each), type)
                )
                self.own_places.update(map(id, filter(is_own_type, types)))
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
        for address, root in self._library_roots.items():
            self.roots.setdefault(address, [root])

    def _add_globals(self, address: int, name: str) -> None:
        if is_own_name(name):
            self.own_places.add(address)
        elif address not in self.roots:
            self.globals.append(address)
            self.roots[address] = [PathRoot(RootKind.GLOBAL, "" if name == "__main__" else name)]

    def _add_frame(self, frame: FrameType) -> None:
        code = frame.f_code
        is_own = code.co_filename.startswith(OWN)
        if not is_own and id(frame.f_globals) not in self.roots:
            self._add_globals(id(frame.f_globals), namespace_name(frame.f_globals))
        # module-level code and class bodies keep their variables in a dict
        if code.co_flags & inspect.CO_NEWLOCALS:
            for name, address, content, references in locals_of(frame):
                # its cell or value; a cell's content if only that is known
                place = address or content
                self.variables[place] += references
                if not is_own and not name.startswith("."):
                    root = PathRoot(RootKind.LOCAL, label(code) + name)
                    if is_foreign(code.co_filename):
                        # a library passes an object through many calls: one root is enough
                        self._library_roots.setdefault(place, root)
                    else:
                        self._add_root(place, root)

    def _add_root(self, address: int, root: PathRoot) -> None:
        if address:
            known = self.roots.setdefault(address, [])
            if root not in known:
                known.append(root)


def namespace_name(variables: Any) -> str:
    """Return the module name in a dict of globals, ``<globals>`` if there is none."""
    name = dict.get(variables, "__name__") if type(variables) is dict else None
    return name if type(name) is str else "<globals>"


def is_own_name(name: Any) -> bool:
    """Return whether a module name is of the profiler."""
    return type(name) is str and (name == _PACKAGE or name.startswith(_PACKAGE + "."))


def is_own(holder: Any) -> bool:
    """Return whether an object is of the profiler, by its type or its code."""
    kind = type(holder)
    if kind is FunctionType:
        return is_own_name(holder.__module__)
    if kind is FrameType:
        return bool(holder.f_code.co_filename.startswith(OWN))
    if (names := suspension(kind)) is not None:
        return bool(getattr(holder, names.code).co_filename.startswith(OWN))
    return is_own_type(holder if is_subtype(kind, type) else kind)


def is_own_type(kind: type) -> bool:
    """Return whether a class is of the profiler."""
    try:
        return is_own_name(module_of_type(kind))
    except AttributeError:
        return False


def is_running(holder: Any) -> bool:
    """Return whether it is a running generator or coroutine; the root table has its variables."""
    names = suspension(type(holder))
    return names is not None and bool(getattr(holder, names.running))
