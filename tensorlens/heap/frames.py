"""Anchors, where names begin: the globals of modules and the variables of running functions.

Before Python 3.13 reading ``f_locals`` stores a dict of strong references in the frame, so only
the native reader is used, which takes none; from 3.13 on ``f_locals`` is a view and may be read.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from types import AsyncGeneratorType, CellType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

from tensorlens.heap.attributes import MODULES, is_subtype, vars_of_module
from tensorlens.heap.native import Slots, native
from tensorlens.interpreter import is_own_thread
from tensorlens.user_code import is_foreign, is_framework

TEMPORARY = "(temporary)"
"""Name of a value on a frame's evaluation stack; the slot may be stale."""

OWN = str(Path(__file__).parents[1]) + os.sep
"""The folder of tensorlens."""
_LOCALS_ARE_VIEWS = sys.version_info >= (3, 13)


class Suspension(NamedTuple):
    """Names of the attributes of an object that can be suspended."""

    code: str
    frame: str
    running: str


SUSPENDED = {
    GeneratorType: Suspension("gi_code", "gi_frame", "gi_running"),
    CoroutineType: Suspension("cr_code", "cr_frame", "cr_running"),
    AsyncGeneratorType: Suspension("ag_code", "ag_frame", "ag_running"),
}


def suspension(kind: type) -> Suspension | None:
    """Return the names for a generator, coroutine or async generator; None for other types."""
    # a look-up would run the __hash__ of a metaclass
    for each, names in SUSPENDED.items():
        if kind is each:
            return names
    return None


def anchors(
    skip_modules: tuple[str, ...] = (), only_modules: Collection[str] | None = None
) -> dict[int, str]:
    """Return the text that a name begins with, by the address of the object it stands for.

    The globals of a module have the module's name, those of ``__main__`` an empty text; a local
    variable is ``function(): local``. Frames of all threads are read, user code before libraries.
    An argument goes by the caller's name for it: the user's outer functions come before inner
    ones, and a local that is also a global of ``__main__`` is left out. A value on an evaluation
    stack is ``function(): (temporary)``; it may be gone, so use its address for comparing only.

    Args:
        skip_modules: modules that are left out with their submodules, as tensorlens is.
        only_modules: the modules whose globals are included; all if None.
    """
    skip = ("tensorlens", *skip_modules)
    texts: dict[int, str] = {}
    temporaries: dict[int, str] = {}
    below = tuple(f"{package}." for package in skip)
    # before frames: runpy and others have a variable for a module's globals
    for name, module in modules(only_modules):
        if name not in skip and not name.startswith(below):
            texts.setdefault(id(vars_of_module(module)), "" if name == "__main__" else name)
    users, libraries = _frames(skip)
    globals_of_main = frozenset(map(id, _variables_of_main()))
    for frame in (*users, *libraries):
        _add_frame(frame, texts, temporaries, globals_of_main)
    return temporaries | texts


def library_functions() -> frozenset[str]:
    """Return the prefixes of variables' names in libraries' running functions: ``fit(): ``."""
    return frozenset(map(label, (frame.f_code for frame in _frames(("tensorlens",))[1])))


def variables_of(frame: FrameType) -> Iterator[Any]:
    """Yield the objects that the variables of a frame of this thread refer to."""
    if _LOCALS_ARE_VIEWS:
        yield from frame.f_locals.values()
    elif _reads_frames():
        count = len(_variables(frame.f_code))
        read = _native_frame(frame, 0, count)
        for address in read.addresses[:count] if read is not None else ():
            if address:
                held = ctypes.cast(address, ctypes.py_object).value
                yield cell_content(held) if type(held) is CellType else held


def cell_content(cell: CellType) -> Any:
    """Return the content of a closure's cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def why_no_locals() -> str:
    """Return why variables of functions are not among the anchors, or an empty text."""
    if _LOCALS_ARE_VIEWS or _reads_frames():
        return ""
    return "the variables of running functions cannot be read, so nothing is named after them"


class Variable(NamedTuple):
    """A variable of a running function."""

    name: str
    address: int
    """Address of its value."""
    content: int
    """Address of the content if the value is a cell, else 0."""
    references: int
    """References that it holds: 0 for an argument that Python 3.14 borrows from the caller."""


def locals_of(frame: FrameType) -> list[Variable]:
    """Return a frame's variables. Their addresses are for comparing only."""
    names = _variables(frame.f_code)
    if _reads_frames():
        read = _native_frame(frame, len(names), len(names))
        if read is not None:
            counted = (1 - borrowed for borrowed in read.borrowed)
            columns = zip(names, read.addresses, read.contents, counted, strict=False)
            return [*map(Variable._make, columns)]
    if _LOCALS_ARE_VIEWS:
        return [Variable(name, id(value), 0, 1) for name, value in frame.f_locals.items()]
    return []


def function_name(code: CodeType) -> str:
    """Return a function's qualified name without ``<locals>``: ``Trainer.fit``, ``main``."""
    return code.co_qualname.replace("<locals>.", "")


def _variables_of_main() -> list[Any]:
    main = sys.modules.get("__main__")
    return [*dict.values(vars_of_module(main))] if is_subtype(type(main), MODULES) else []


def label(code: CodeType) -> str:
    """Return the prefix of the names of a function's variables: ``main(): ``."""
    return f"{function_name(code)}(): "


def _add_frame(
    frame: FrameType, texts: dict[int, str], temporaries: dict[int, str], skipped: frozenset[int]
) -> None:
    code = frame.f_code
    # module-level code and class bodies keep their variables in a dict
    if not code.co_flags & inspect.CO_NEWLOCALS:
        return
    function = label(code)
    for name, address, content, _ in locals_of(frame):
        # the cell of a global of __main__ would be one more path to it
        if not name.startswith(".") and content not in skipped:
            for place in (content, address):
                if place not in skipped:
                    texts.setdefault(place, function + name)
    texts.pop(0, None)
    if _reads_frames():
        variables = len(_variables(code))
        read = _native_frame(frame, 0, variables + code.co_stacksize)
        for address in read.addresses[variables:] if read is not None else ():
            if address:
                temporaries.setdefault(address, function + TEMPORARY)


def _variables(code: CodeType) -> list[str]:
    names = [*code.co_varnames]
    names += [name for name in code.co_cellvars if name not in code.co_varnames]
    return [*names, *code.co_freevars]


def _native_frame(frame: FrameType, variables: int, count: int) -> Slots | None:
    reader = native()
    return reader.frame(frame, variables, count) if reader is not None else None


@functools.cache
def _reads_frames() -> bool:
    """Return whether frames have the expected layout, checked on one of known content."""

    def check(first: object) -> bool:
        second = [first]

        def inner() -> object:
            return second

        read = _native_frame(sys._getframe(), 5, 5)
        expected = first, inner, second
        return read is not None and [*read.addresses[:2], read.contents[4]] == [*map(id, expected)]

    return check(object())


def _frames(skip: tuple[str, ...]) -> tuple[list[FrameType], list[FrameType]]:
    """Return the running frames: the user's, outer before inner; libraries', inner before outer.

    Frames of the frameworks come last, since the names of their variables say the least.
    """
    current = threading.get_ident()
    users: list[FrameType] = []
    libraries: list[FrameType] = []
    frames = sys._current_frames()
    try:
        for thread in sorted(frames, key=lambda ident: (ident != current, ident)):
            frame: FrameType | None = frames[thread]
            first = len(users)
            while frame is not None:
                file, name = frame.f_code.co_filename, dict.get(frame.f_globals, "__name__")
                is_own = file.startswith(OWN) or (type(name) is str and _is_below(name, skip))
                if not is_own:
                    (libraries if is_foreign(file) else users).append(frame)
                frame = frame.f_back
            users[first:] = reversed(users[first:])
    finally:
        # this function's own frame is among them: a cycle
        frames.clear()
    # a thread of ours reads them in the middle of a library's call
    if is_own_thread():
        libraries.clear()
    return users, sorted(libraries, key=lambda frame: is_framework(frame.f_code.co_filename))


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def modules(only: Collection[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the name and the module of each imported module, or of those named in ``only``."""
    # sys.modules may hold anything, and other threads may be importing
    known = dict.copy(sys.modules)
    chosen = known.items() if only is None else ((name, known.get(name)) for name in only)
    for name, module in chosen:
        if type(name) is str and is_subtype(type(module), MODULES):
            yield name, module
