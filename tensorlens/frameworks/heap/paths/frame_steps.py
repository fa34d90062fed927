"""References of functions, of suspended generators and coroutines, and of kept frames."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import AsyncGeneratorType, CellType, CoroutineType, FrameType, GeneratorType

from tensorlens.frameworks.heap.frames import function_name, locals_of
from tensorlens.frameworks.heap.paths import look
from tensorlens.frameworks.heap.paths.nodes import Node
from tensorlens.frameworks.heap.paths.roots import CODES
from tensorlens.frameworks.heap.paths.step import Step
from tensorlens.records.leaks import Reference

_WORDS = {
    GeneratorType: "generator",
    CoroutineType: "coroutine",
    AsyncGeneratorType: "async generator",
}


def of_function(nodes: Sequence[Node]) -> Step | None:
    """Return what of a function refers to the next: a closure, a default, an attribute."""
    function, child = nodes[0].object, nodes[1]
    name = look.short(function.__qualname__)
    if child.items is not None and len(nodes) > 2:
        place = look.index_of(child, nodes[2])
        if child.address == id(function.__closure__):
            names = function.__code__.co_freevars
            outer = function.__qualname__.rpartition(".<locals>.")[0]
            owner = f"{look.short(outer)}(): " if outer else ""
            variable = names[place] if place is not None and place < len(names) else "?"
            reference = Reference("closure", f"{owner}{variable} (closure)")
            return Step(reference, min(3, len(nodes) - 1), True, 2)
        if child.address == id(function.__defaults__):
            code = function.__code__
            first = code.co_argcount - len(child.items)
            argument = code.co_varnames[first + place] if place is not None else "?"
            return Step(Reference("default", f"{name}({argument}=...) (default)"), 2, True)
    if type(child.object) is dict and len(nodes) > 2:
        key = look.key_of(child, nodes[2])
        word = key if type(key) is str else "?"
        if function.__kwdefaults__ is child.object:
            return Step(Reference("default", f"{name}({word}=...) (default)"), 2, True)
        if look.is_dict_of(nodes[0], child):
            text = f"{name}.{word} (function attribute)"
            return Step(Reference("function attribute", text), 2, True)
    return Step(Reference("function", f"{name} (function)"), 1, True)


def of_suspended(nodes: Sequence[Node]) -> Step:
    """Return which variable of a generator or a coroutine refers to the next."""
    holder = nodes[0].object
    kind = type(holder)
    frame = getattr(holder, CODES[kind][1])
    word = _WORDS[kind]
    name = f"{look.short(holder.__qualname__)}()"
    if type(frame) is not FrameType:
        return Step(Reference(word, f"{name} ({word})"))
    return _of_variables(nodes, frame, word, f" ({word})")


def of_frame(nodes: Sequence[Node]) -> Step:
    """Return which variable of a frame that a traceback keeps refers to the next."""
    if type(nodes[1].object) is FrameType:
        return Step(None)
    return _of_variables(nodes, nodes[0].object, "frame", "")


def _of_variables(nodes: Sequence[Node], frame: FrameType, kind: str, suffix: str) -> Step:
    label = f"{function_name(frame.f_code)}(): "
    child = nodes[1]
    is_cell = type(child.object) is CellType and len(nodes) > 2
    for name, address, content in locals_of(frame):
        if child.address in (address, content) and not name.startswith("."):
            return Step(Reference(kind, f"{label}{name}{suffix}"), 1 + is_cell)
    variables = _variables_dict(nodes, frame)
    if variables is not None:
        key = look.key_of(variables, nodes[2])
        if type(key) is str:
            return Step(Reference(kind, f"{label}{key}{suffix}"), 2)
    return Step(Reference(kind, f"{label}(temporary)"))


def _variables_dict(nodes: Sequence[Node], frame: FrameType) -> Node | None:
    """Return the dict that module-level code and class bodies keep their variables in."""
    if frame.f_code.co_flags & 0x02 or len(nodes) < 3 or type(nodes[1].object) is not dict:
        return None
    return nodes[1] if any(held is nodes[1].object for held in gc.get_referents(frame)) else None
