"""The near part of the heap: what the running functions of this thread lead to in a few steps.

To look at all of the heap takes as long as what the process has imported: 60 ms with torch alone.
What a program trains is found from the variables of its functions and the globals of its modules.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

from tensorlens.heap.attributes import MODULES, is_subtype, vars_of_module
from tensorlens.heap.frames import OWN, variables_of
from tensorlens.user_code import is_foreign

_DEPTH = 8
_MOST = 20_000
"""Objects that are looked at."""
_LARGEST = 10_000
"""Entries of a container that is looked into: larger ones hold data."""
_CLOSED = frozenset(map(id, (CodeType, FrameType, BuiltinFunctionType)))
_SIZED = frozenset(map(id, (list, dict, set, tuple)))
"""Types by identity: to compare or hash a class may run code of its metaclass."""


@dataclass(frozen=True, slots=True)
class Heap:
    """Objects to find names among: all there are, or those near the running functions."""

    objects: list[Any]
    tuples: list[tuple[Any, ...]] | None = None
    """Beside the objects; None: all there are."""
    modules: frozenset[str] | None = None
    """Names of the modules whose globals are among the objects; None: all modules."""


def near_heap() -> Heap:
    """Return what this thread's functions and the globals of the user's modules lead to.

    Classes, modules of libraries and frames are not looked into, nor containers of more than
    10,000 entries. At most 20,000 objects are returned, those of the fewest steps first.
    """
    search = _Search()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OWN):
            search.add_frame(frame)
        frame = frame.f_back
    search.add_module(sys.modules.get("__main__"))
    return search.run()


class _Search:
    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._tuples: list[tuple[Any, ...]] = []
        self._modules: set[str] = set()
        self._next: list[Any] = []
        self._plain: dict[int, type] = {}
        """Types of what is looked into, by identity."""

    def add_frame(self, frame: FrameType) -> None:
        """Begin at a function's variables, and at its globals where it is the user's."""
        if frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            self._add(variables_of(frame))
        if not is_foreign(frame.f_code.co_filename):
            self._add_globals(frame.f_globals)

    def add_module(self, module: Any) -> None:
        """Begin at the globals of a module of the user's; a library's is left out."""
        if is_subtype(type(module), MODULES):
            content = vars_of_module(module)
            file = dict.get(content, "__file__")
            is_main = module is sys.modules.get("__main__")
            if is_main or (type(file) is str and not is_foreign(file)):
                self._add_globals(content)

    def _add_globals(self, content: dict[str, Any]) -> None:
        name = dict.get(content, "__name__")
        if type(name) is str and name not in self._modules and not name.startswith("tensorlens"):
            self._modules.add(name)
            self._add([content])

    def run(self) -> Heap:
        """Go on for some steps."""
        for _ in range(_DEPTH):
            if not self._next or len(self._seen) >= _MOST:
                break
            holders, self._next = self._next, []
            open_ones = [each for each in holders if _is_open(each)]
            self._add(gc.get_referents(*open_ones))
            for each in holders:
                if type(each) is FunctionType:
                    self._add(_parts_of_function(each))
        objects = [each for each in self._seen.values() if type(each) is not tuple]
        return Heap(objects, self._tuples, frozenset(self._modules))

    def _add(self, found: Any) -> None:
        seen, plain, is_tracked = self._seen, self._plain, gc.is_tracked
        for each in found:
            if is_tracked(each) and id(each) not in seen and len(seen) < _MOST:
                kind = type(each)
                if id(kind) not in plain:
                    if id(kind) in _CLOSED or is_subtype(kind, type):
                        continue
                    if is_subtype(kind, MODULES):
                        self.add_module(each)
                        continue
                    plain[id(kind)] = kind
                seen[id(each)] = each
                self._next.append(each)
                if kind is tuple:
                    self._tuples.append(each)


def _is_open(item: Any) -> bool:
    kind = type(item)
    if kind is FunctionType:
        return False
    return id(kind) not in _SIZED or len(item) <= _LARGEST


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    yield from filter(None, (function.__closure__, function.__defaults__, function.__kwdefaults__))
    yield function.__dict__
