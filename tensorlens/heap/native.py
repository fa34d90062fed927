"""The native reader of the heap: built on first use and checked on objects of known content.

The numbers of :class:`How`, :class:`Origin` and :class:`Written` are those in ``layout.h``.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import sysconfig
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import CellType, FunctionType
from typing import Any, NamedTuple

from tensorlens.heap.attributes import TRANSPARENT
from tensorlens.native.build import (
    SOURCES,
    NativePart,
    NativeUnavailable,
    Signatures,
    declare,
    load,
)

PART = NativePart(
    name="heap",
    label="the native reader of the heap",
    source=SOURCES / "heap" / "heap.cpp",
    options=("-std=c++17",),
)

_WORD = ctypes.sizeof(ctypes.c_void_p)
_Number, _Address, _Object = ctypes.c_int64, ctypes.c_void_p, ctypes.py_object
_SIGNATURES: Signatures = {
    "tl_heap_setup": (None, (*[_Number] * 4, _Object)),
    "tl_heap_offset": (_Number, (ctypes.c_char_p,)),
    "tl_heap_dict_of": (ctypes.c_uint64, (_Object,)),
    "tl_heap_inline_name": (ctypes.c_uint64, (_Object, _Object)),
    "tl_heap_objects": (_Object, (_Object,)),
    "tl_heap_select": (ctypes.c_int, (*[_Object] * 4,)),
    "tl_heap_search": (_Address, (_Object, *[_Address] * 4, _Number, *[_Object] * 3)),
    "tl_heap_references": (ctypes.c_int, (*[_Address] * 3, *[_Object] * 3)),
    "tl_heap_length": (_Number, (_Address,)),
    "tl_heap_read": (None, (*[_Address] * 7,)),
    "tl_heap_release": (None, (_Address,)),
    "tl_heap_assemble": (_Number, (_Number, _Number, *[_Address] * 8, _Number, _Address)),
    "tl_heap_frame": (ctypes.c_int, (_Object, _Object, _Number, _Number, *[_Address] * 3)),
}


class How(IntEnum):
    """How an object is held. An alias has the name of its holder."""

    ROOT = 0
    ITEM = 1
    VALUE = 2
    ATTRIBUTE = 3
    ALIAS = 4
    OPAQUE = 5
    """A reference whose place is unknown."""
    KEY = 6
    CLOSURE_VARIABLE = 7
    LOCAL = 8
    CONTENTS = 9
    DEFAULTS = 10
    KEYWORD_DEFAULTS = 11
    VARS = 12
    """An object's ``__dict__``, a class's or a module's variables; named like an alias."""
    CLOSURE = 13


class Written(IntEnum):
    """How a key is written: as a short text in quotes, an attribute's name, or anything else."""

    QUOTED = 0
    BARE = 1
    DESCRIBED = 2


class Origin(IntEnum):
    """Where a name begins, the best first."""

    MAIN = 0
    VARIABLE = 1
    CLASS = 2
    OTHER_MODULE = 3
    FUNCTION = 4
    GENERATOR = 5
    FRAME = 6
    TEMPORARY = 7
    TOP = 8
    CYCLE = 9


@dataclass(slots=True)
class HolderRows:
    """Objects on the paths to targets, one a row, holders before the objects they hold."""

    holder: array[int]
    """Row of the holder; -1 if a name begins here."""
    how: array[int]
    value: array[int]
    """An index, the number of a key, or the :class:`Origin` of a root."""
    address: array[int]
    keys: list[Any]
    written: array[int]
    """A :class:`Written` for each key."""
    targets: array[int]
    """Row of each target, or -1."""
    tuples: list[Any]
    """Tuples among the rows, to be kept alive until the rows have been read."""


class FoundReference(NamedTuple):
    """One object that refers to another."""

    holder: Any
    """The object itself; in place of a tuple, which may be unfinished, its length."""
    address: int
    """Address of the holder."""
    child: int
    """Address of the object referred to."""
    references: int
    """How many times the holder refers to it."""
    how: int
    """The :class:`How` of the first of these references."""
    value: Any
    """The dict's key, attribute's name or index of that reference; 0 if it has none."""


class Slots(NamedTuple):
    """Variables of a frame, followed by its evaluation stack."""

    addresses: array[int]
    borrowed: array[int]
    """1 if the slot holds no reference, which may be so from Python 3.14 on."""
    contents: array[int]
    """Address of the content of each variable that is a cell, else 0."""


class NativeHeap:
    """A reader of the heap that runs no Python code.

    Raises:
        NativeUnavailable: on construction, if objects do not have the expected layout.
    """

    def __init__(self, library: ctypes.PyDLL) -> None:
        declare(library, _SIGNATURES)
        self._library = library
        self._check_objects()
        self._set_up(_cached_keys_offset())
        if not self._reads_inline_names():
            self._set_up(0)
        self._check_instances()

    def objects(self) -> list[Any]:
        """Return the heap's objects but exact tuples, which it drops before other code runs."""
        found: list[Any] = self._library.tl_heap_objects(gc.get_objects)
        return found

    def select(
        self, objects: list[Any], kinds: tuple[type, ...], exact: tuple[type, ...]
    ) -> tuple[list[Any], ...]:
        """Return a list of each kind's objects, then one of those whose type is in ``exact``."""
        lists: tuple[list[Any], ...] = tuple([] for _ in (*kinds, exact))
        self._library.tl_heap_select(objects, kinds, exact, lists)
        return lists

    def search(
        self,
        objects: list[Any],
        targets: array[int],
        anchors: array[int],
        origins: array[int],
        first_text: int,
        fetch: Callable[[], list[Any]],
    ) -> HolderRows:
        """Search for the holders of the targets.

        Args:
            objects: the heap.
            targets: addresses.
            anchors: addresses of objects that names begin with.
            origins: the :class:`Origin` of each anchor.
            first_text: the number of the first key's text; the others follow.
            fetch: returns objects that include the tuples to search.

        Raises:
            MemoryError: the search ran out of memory.
        """
        library, keys, met = self._library, list[Any](), list[Any]()
        lengths = array("q", map(len, (targets, anchors)))
        columns = map(pointer, (targets, anchors, origins, lengths))
        handle = library.tl_heap_search(objects, *columns, first_text, fetch, keys, met)
        if not handle:
            raise MemoryError
        try:
            count = library.tl_heap_length(handle)
            found = (zeros("i", count), zeros("b", count), zeros("q", count), zeros("Q", count))
            written, rows = zeros("b", len(keys)), zeros("i", len(targets))
            library.tl_heap_read(handle, *map(pointer, (*found, written, rows)))
        finally:
            library.tl_heap_release(handle)
        return HolderRows(*found, keys, written, rows, met)

    def references(
        self, targets: array[int], anchors: array[int]
    ) -> tuple[list[FoundReference], dict[int, bool]]:
        """Return the references to the targets, to their holders, and so on, the nearest first.

        Also return, by the address of each object whose holders were searched, whether all of them
        are there. No search is made for holders of anchors and their instances, of classes and
        modules, of objects 20 or more references away, or of more than about 1,000 objects. Holders
        that the collector does not track, or that are frozen, are not found.
        """
        found, searched = list[Any](), list[int]()
        lengths = array("q", map(len, (targets, anchors)))
        columns = map(pointer, (targets, anchors, lengths))
        if self._library.tl_heap_references(*columns, gc.get_objects, found, searched) < 0:
            raise MemoryError
        fields = [iter(found)] * len(FoundReference._fields)
        references = [*map(FoundReference._make, zip(*fields, strict=True))]
        return references, dict(zip(searched[::2], map(bool, searched[1::2]), strict=True))

    def assemble(
        self, rows: HolderRows, kind: array[int], value: array[int], first: int
    ) -> tuple[array[int], array[int], array[int], array[int], array[int]]:
        """Return the node of each target and row, and the new nodes' parents, kinds and values."""
        count, nodes = len(kind), zeros("i", len(rows.targets))
        numbers, parents = zeros("i", count), zeros("i", count)
        kinds, values = zeros("b", count), zeros("q", count)
        columns = (rows.holder, kind, value, numbers, parents, kinds, values, rows.targets)
        made = self._library.tl_heap_assemble(
            count, first, *map(pointer, columns), len(nodes), pointer(nodes)
        )
        return nodes, numbers, parents[:made], kinds[:made], values[:made]

    def frame(self, frame: Any, variables: int, count: int) -> Slots | None:
        """Return the first ``count`` slots of a frame, and the contents of cells in ``variables``.

        No reference is taken. None if the frame does not have the expected layout.
        """
        slots = Slots(zeros("Q", count), zeros("B", count), zeros("Q", max(variables, 1)))
        read = self._library.tl_heap_frame(
            frame, frame.f_code, variables, count, *map(pointer, slots)
        )
        return slots if read else None

    def dict_address(self, item: object) -> int:
        """Return the address of an instance's ``__dict__``; 0 if it has not been made."""
        # ctypes would read the __class__ of an argument that is no py_object
        address: int = self._library.tl_heap_dict_of(_Object(item))
        return address

    def _set_up(self, cached_keys: int) -> None:
        probe = (object(),)
        offset = 24 if _word(id(probe), 24) == id(probe[0]) else 32
        _require(_word(id(probe), offset) == id(probe[0]), "tuples")
        minor = sys.version_info.minor
        self._library.tl_heap_setup(minor, offset, cached_keys, _values_bypass_dict(), TRANSPARENT)

    def _check_objects(self) -> None:
        _require(not sysconfig.get_config_var("Py_GIL_DISABLED"), "a build without the GIL")
        _require(sys.implementation.name == "cpython" and _WORD == 8, "this interpreter")
        one, other = object(), object()
        items = [one, other]
        _require(self._field(items, "type") == id(list), "objects")
        _require(self._field(items, "size") == 2, "objects")
        start = self._field(items, "list items")
        _require(_word(start, 0) == id(one) and _word(start, 8) == id(other), "lists")
        _require(self._field("three", "text length") == 5, "texts")
        _require(self._field(CellType(one), "cell content") == id(one), "cells")
        for kind in (FunctionType, ValueError, int, _Plain):
            layout = (kind.__basicsize__, kind.__itemsize__)
            fields = (self._field(kind, "basic size"), self._field(kind, "item size"))
            _require(fields == layout, "types")
        place = self._field(FunctionType, "dict offset")
        _require(place == FunctionType.__dictoffset__ != 0, "types")
        self._check_function()

    def _check_function(self) -> None:
        free = object()

        def probe(first: object = free, *, second: object = free) -> object:
            return free

        probe.attribute = 1  # type: ignore[attr-defined]
        fields = {
            "defaults": probe.__defaults__,
            "keyword defaults": probe.__kwdefaults__,
            "closure": probe.__closure__,
            "attributes": probe.__dict__,
        }
        for name, value in fields.items():
            _require(self._field(probe, name) == id(value), "functions")

    def _field(self, item: object, name: str) -> int:
        """Return the word of an object at an offset named in ``offsets.h``."""
        return _word(id(item), self._library.tl_heap_offset(name.encode()))

    def _check_instances(self) -> None:
        for made in (_Plain(), _Pair((1, 2)), ValueError(), _List()):
            made.attribute = []  # type: ignore[union-attr]
            content = vars(made)
            _require(self.dict_address(made) == id(content), "instances")

    def _reads_inline_names(self) -> bool:
        probe, name_of = _Plain(), self._library.tl_heap_inline_name
        for name in ("first", "second", "third"):
            setattr(probe, name, object())
        del probe.first  # type: ignore[attr-defined]
        # compared by address: the word read may not be a name
        return not name_of(probe, object()) and all(
            name_of(probe, getattr(probe, name)) == id(sys.intern(name))
            for name in ("second", "third")
        )


class _Plain:
    pass


class _Pair(tuple[int, int]):
    pass


class _List(list[int]):
    pass


def zeros(code: str, count: int) -> array[Any]:
    """Return an array of ``count`` zeros."""
    return array(code, [0]) * count


def _word(address: int, offset: int) -> int:
    return ctypes.c_uint64.from_address(address + offset).value


def pointer(values: array[Any]) -> ctypes.c_void_p:
    """Return the address of an array's values, valid until its length changes."""
    return ctypes.c_void_p(values.buffer_info()[0])


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise NativeUnavailable(f"{PART.label} does not know {what} of this Python")


def _cached_keys_offset() -> int:
    """Return the offset of ``ht_cached_keys`` in a class; 0 if it is not found."""
    size: int = type.__dict__["__basicsize__"].__get__(type)
    for offset in range(400, size - 3 * _WORD, _WORD):
        name, qualified = _word(id(_Plain), offset), _word(id(_Plain), offset + 2 * _WORD)
        if name == id(_Plain.__name__) and qualified == id(_Plain.__qualname__):
            return offset + 3 * _WORD
    return 0


def _values_bypass_dict() -> bool:
    """Return whether the collector visits inline values from the instance, not its ``__dict__``.

    True of Python 3.13.
    """
    probe = _Plain()
    probe.attribute = []  # type: ignore[attr-defined]
    return not gc.get_referents(vars(probe))


@functools.cache
def _load() -> NativeHeap | str:
    try:
        return NativeHeap(load(PART))
    except NativeUnavailable as error:
        return str(error)


def native() -> NativeHeap | None:
    """Return the native reader, or None if it is not available."""
    loaded = _load()
    return loaded if isinstance(loaded, NativeHeap) else None


def why_not_native() -> str:
    """Return why there is no native reader, or an empty text."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""
