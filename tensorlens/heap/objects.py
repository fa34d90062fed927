"""The objects of the heap: all, those of some types, or those near this thread's functions.

No code of the objects runs. A search of the whole heap takes 60 ms with torch imported, and longer
the more is imported. What a program trains is found in the **near heap**: objects that the
variables of its functions and the globals of its modules refer to, over a few steps.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, repeat
from operator import is_not
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

from tensorlens.heap.attributes import MODULES, is_subtype, vars_of_module
from tensorlens.heap.frames import OWN, variables_of
from tensorlens.heap.native import native
from tensorlens.user_code import is_foreign

_MAX_STEPS = 8
_MAX_OBJECTS = 20_000
_MAX_ENTRIES = 10_000
"""Containers with more entries hold data and are not followed."""
_SKIPPED = frozenset(map(id, (CodeType, FrameType, BuiltinFunctionType)))
_SIZED = frozenset(map(id, (list, dict, set, tuple)))
"""Types by identity: comparing or hashing a class may run code of its metaclass."""


def live_objects() -> list[Any]:
    """Return the heap's objects except exact tuples; see :func:`without_tuples`."""
    reader = native()
    return without_tuples() if reader is None else reader.objects()


def without_tuples() -> list[Any]:
    """Return the heap's objects except exact tuples, without the native reader.

    ``tuple(iterable)`` makes a tuple in steps, and fails with ``SystemError`` when somebody else
    holds it as its maker goes on (``_PyTuple_Resize`` of ``Objects/tupleobject.c``).
    ``gc.get_objects()`` holds it, and wherever Python code runs, another thread may get its turn.
    """
    found: list[Any] = []
    kept: list[Any] = []
    fetch: Any = map(gc.get_objects, (None,))
    steps = chain(
        filter(None, map(found.extend, fetch)),
        compress(found, map(is_not, map(type, found), repeat(tuple))),
        filter(None, map(list.clear, (found,))),
    )
    # one call, in which no other code runs: all are fetched, chosen from and let go
    kept.extend(steps)
    others = list(compress(kept, map(is_not, kept, repeat(kept))))
    # it contains itself, which is a cycle
    kept.clear()
    return others


def select(
    objects: list[Any], kinds: tuple[type, ...], exact: tuple[type, ...] = ()
) -> tuple[list[Any], ...]:
    """Return, for each kind, the objects whose type derives from it, in order.

    A last list has those whose type is itself in ``exact``, which may have hundreds of types. Only
    the type counts, never ``__class__``, and no code of a metaclass runs.
    """
    reader = native()
    if reader is not None:
        return reader.select(objects, kinds, exact)
    types = {id(kind): kind for kind in map(type, objects)}.values()
    chosen = [{id(kind) for kind in types if is_subtype(kind, base)} for base in kinds]
    chosen.append(set(map(id, exact)))
    return tuple([each for each in objects if id(type(each)) in kept] for kept in chosen)


def instances(*kinds: type) -> list[Any]:
    """Return the heap's objects of these classes, and of those derived from them, each once.

    Not found are objects that the garbage collector does not track or ``gc.freeze()`` set aside.
    """
    found: dict[int, Any] = {}
    for each in select(live_objects(), kinds):
        found.update((id(item), item) for item in each)
    return [*found.values()]


@dataclass(frozen=True, slots=True)
class Heap:
    """Objects to search for names: all there are, or those near the running functions."""

    objects: list[Any]
    tuples: list[tuple[Any, ...]] | None = None
    """Tuples, which are not among the objects; None means all there are."""
    modules: frozenset[str] | None = None
    """Names of the modules whose globals are among the objects; None: all modules."""


def near_heap() -> Heap:
    """Return the objects reached from this thread's functions and the user's modules' globals.

    Classes, modules of libraries, frames and containers of more than 10,000 entries are not
    followed. At most 20,000 objects are returned, the nearest first.
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
        """Types that are followed, by identity."""

    def add_frame(self, frame: FrameType) -> None:
        """Start at a function's variables, and at its globals if the function is the user's."""
        if frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            self._add(variables_of(frame))
        if not is_foreign(frame.f_code.co_filename):
            self._add_globals(frame.f_globals)

    def add_module(self, module: Any) -> None:
        """Start at a module's globals, unless the module is a library's."""
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
        """Follow references for some steps and return what was found."""
        for _ in range(_MAX_STEPS):
            if not self._next or len(self._seen) >= _MAX_OBJECTS:
                break
            holders, self._next = self._next, []
            self._add(gc.get_referents(*filter(_is_followed, holders)))
            for each in holders:
                if type(each) is FunctionType:
                    self._add(_parts_of_function(each))
        objects = [each for each in self._seen.values() if type(each) is not tuple]
        return Heap(objects, self._tuples, frozenset(self._modules))

    def _add(self, objects: Iterable[Any]) -> None:
        seen, plain, is_tracked = self._seen, self._plain, gc.is_tracked
        for each in objects:
            if is_tracked(each) and id(each) not in seen and len(seen) < _MAX_OBJECTS:
                kind = type(each)
                if id(kind) not in plain:
                    if id(kind) in _SKIPPED or is_subtype(kind, type):
                        continue
                    if is_subtype(kind, MODULES):
                        self.add_module(each)
                        continue
                    plain[id(kind)] = kind
                seen[id(each)] = each
                self._next.append(each)
                if kind is tuple:
                    self._tuples.append(each)


def _is_followed(item: Any) -> bool:
    kind = type(item)
    if kind is FunctionType:
        return False
    return id(kind) not in _SIZED or len(item) <= _MAX_ENTRIES


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    yield from filter(None, (function.__closure__, function.__defaults__, function.__kwdefaults__))
    yield function.__dict__
