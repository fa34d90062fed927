"""Rows of a search of the heap: how each object on the path to a target is held.

The numbers here are spelled the same in ``search.h``.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from types import (
    AsyncGeneratorType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

ATOMIC, FUNCTION, MODULE, CELL, GENERATOR, FRAME, LIST, TUPLE, DICT, TYPE, OTHER = range(11)
"""Kinds of holders; the first cannot hold anything."""

SPECIAL: dict[type, int] = {
    MethodDescriptorType: ATOMIC,
    WrapperDescriptorType: ATOMIC,
    GetSetDescriptorType: ATOMIC,
    MemberDescriptorType: ATOMIC,
    ClassMethodDescriptorType: ATOMIC,
    CodeType: ATOMIC,
    FunctionType: FUNCTION,
    CellType: CELL,
    GeneratorType: GENERATOR,
    CoroutineType: GENERATOR,
    AsyncGeneratorType: GENERATOR,
    FrameType: FRAME,
}
"""The types that are known by themselves, not by what they derive from."""

MODULES = ModuleType

(
    ROOT,
    ITEM,
    VALUE,
    ATTRIBUTE,
    ALIAS,
    OPAQUE,
    KEY,
    FREE,
    LOCAL,
    CONTENTS,
    DEFAULTS,
    KEYWORD_DEFAULTS,
    VARS,
    CLOSURE,
) = range(14)
"""How an object is held.

By an index, as a value of a dict, by an attribute; an alias is part of its holder's name; opaque
is a reference of unknown place. A dict's key, a closure's cell, a frame's local, what a cell
holds, a function's defaults; ``__dict__`` and closure tuples become aliases.
"""

QUOTED, BARE, DESCRIBED = range(3)
"""How a key is written: a short text in quotes, an attribute's name, anything else."""

(
    MAIN,
    VARIABLE,
    CLASS,
    OTHER_MODULE,
    OF_FUNCTION,
    OF_GENERATOR,
    OF_FRAME,
    TEMPORARY,
    TOP,
    CYCLE,
) = range(10)
"""Where a name begins, the better first."""

DEPTH = 8
"""How many references a path has at most."""

_MRO = type.__dict__["__mro__"].__get__
_VARS = vars(ModuleType)["__dict__"].__get__
vars_of_type: Callable[[type], Any] = type.__dict__["__dict__"].__get__
name_of_type: Callable[[type], str] = type.__dict__["__name__"].__get__
qualname_of_type: Callable[[type], str] = type.__dict__["__qualname__"].__get__
module_of_type: Callable[[type], Any] = type.__dict__["__module__"].__get__
"""These run no code of a metaclass."""

TRANSPARENT = ("_modules", "_parameters", "_buffers")
"""Attributes that are dicts whose entries read as attributes: ``model.fc``."""


@dataclass(slots=True)
class HolderRows:
    """Objects on the path to targets, holders before what they hold."""

    holder: array[int] = field(default_factory=lambda: array("i"))
    """The row of the holder, or -1 where a name begins."""
    how: array[int] = field(default_factory=lambda: array("b"))
    value: array[int] = field(default_factory=lambda: array("q"))
    """An index, the number of a key, or for a root where its name begins."""
    address: array[int] = field(default_factory=lambda: array("Q"))
    keys: list[Any] = field(default_factory=list)
    written: array[int] = field(default_factory=lambda: array("b"))
    """For each key, how it is written: :data:`QUOTED`, :data:`BARE`, :data:`DESCRIBED`."""
    targets: array[int] = field(default_factory=lambda: array("i"))
    """The row of each target, or -1."""
    tuples: list[Any] = field(default_factory=list)
    """Those among the rows: they have to live until the rows have been read."""


@dataclass(slots=True)
class HolderSearch:
    """Targets of a search, and the anchors of names."""

    objects: list[Any]
    targets: array[int]
    anchors: array[int]
    origins: array[int]
    first_text: int
    """The number of the first key's text; the others' go on from there."""
    tuples: list[tuple[Any, ...]] = field(default_factory=list)
    """Looked at before all the tuples of the heap are, to save time."""
    fetch: Callable[[], list[Any]] = gc.get_objects
    """Gives the objects that the other tuples are among."""


def zeros(code: str, count: int) -> array[Any]:
    """Return an array of ``count`` zeros."""
    return array(code, [0]) * count


def is_subtype(kind: type, base: type) -> bool:
    """Tell whether ``kind`` derives from ``base``, running no metaclass's code."""
    return kind is base or any(known is base for known in mro(kind))


def mro(kind: type) -> tuple[type, ...]:
    """Return the types that ``kind`` derives from, itself first, running no code of theirs."""
    found: tuple[type, ...] = _MRO(kind)
    return found


def vars_of_module(module: Any) -> dict[str, Any]:
    """Return a module's globals, running no code of a lazy module."""
    found: dict[str, Any] = _VARS(module)
    return found
