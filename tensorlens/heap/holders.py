"""Search for the path from a variable, a global or a class to each of some objects."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tensorlens.heap import reference_names
from tensorlens.heap.attributes import is_subtype, name_of_type
from tensorlens.heap.frames import TEMPORARY, why_no_locals
from tensorlens.heap.native import HolderRows, How, Origin, Written, native
from tensorlens.records.names import ATTRIBUTE, INDEX, KEY, TEXT, Names, attribute_text, key_text

UNREACHABLE = "unreachable cycle"
"""Beginning of the names of objects for which no holder was found."""
_NO_NODE = -1

_NODE_KINDS: dict[int, int] = {
    How.ITEM: INDEX,
    How.VALUE: KEY,
    How.ATTRIBUTE: ATTRIBUTE,
    How.ALIAS: _NO_NODE,
}
_TO_KINDS = bytes(_NODE_KINDS.get(how, 0) & 0xFF for how in range(256))
_NEEDS_TEXT = re.compile(b"[%b]" % re.escape(bytes(how for how in How if how not in _NODE_KINDS)))
_WRITERS: dict[int, Callable[[Any], str]] = {
    Written.QUOTED: repr,
    Written.BARE: attribute_text,
    Written.DESCRIBED: key_text,
}
_ATTRIBUTES = {
    How.CONTENTS: "cell_contents",
    How.DEFAULTS: "__defaults__",
    How.KEYWORD_DEFAULTS: "__kwdefaults__",
}


def why_no_names() -> str:
    """Return why nothing is named after variables, or an empty text."""
    if native() is None:
        return "the native reader of the heap is missing, so nothing is named after variables"
    return why_no_locals()


def find_holders(
    objects: list[Any],
    targets: array[int],
    anchors: Mapping[int, str],
    names: Names,
    loose: set[int] | None = None,
    named: Mapping[int, int] | None = None,
    tuples: list[tuple[Any, ...]] | None = None,
) -> array[int]:
    """Return the node of each target's name in ``names``, or -1 if no holder is known.

    Args:
        objects: the heap, as :func:`~tensorlens.heap.objects.live_objects` returns it. Only these
            objects and tuples count as holders.
        targets: addresses of objects that the caller keeps alive.
        anchors: the text that a name begins with, by the address of an object, as
            :func:`~tensorlens.heap.frames.anchors` returns it. Entries of an anchor whose text is
            empty or a module's name are attributes.
        names: receives the new nodes.
        loose: receives the nodes where names begin at a value on an evaluation stack, at an
            outermost holder that is no anchor, or at a cycle that nothing holds.
        named: further anchors with the node of each one's name in ``names``; they come before
            ``anchors``. If that name has a parent, the anchor ranks as a class.
        tuples: the tuples to search at the end; all of the heap if None.

    The path with the fewest references is chosen, at most 8; among equal ones the one with the
    better :class:`~tensorlens.heap.native.Origin`. Holders of a function, a class or a module are
    not searched for. A target that no such path reaches is named after a value on an evaluation
    stack, else after the type of the outermost holder, else as part of an unreachable cycle.

    One step back adds at most four holders per target and 10,000 more, in the order of the heap:
    beyond these a name may be a longer path or none.

    Without the native reader nothing has a name: see :func:`why_no_names`.
    """
    reader = native()
    if reader is None:
        return array("i", [-1]) * len(targets)
    named = named or {}
    origins = _origins(named, names)
    origins.extend(map(_origin, anchors.values()))
    places = array("Q", [*named, *anchors])
    fetch = gc.get_objects if tuples is None else tuples.copy
    first_text = len(names.texts)
    rows = reader.search(objects, targets, places, origins, first_text, fetch)
    describer = _RowDescriber(rows, anchors, names, named)
    kinds, values = describer.columns()
    nodes, numbers, *new = reader.assemble(rows, kinds, values, len(names))
    for column, more in zip((names.parents, names.kinds, names.values), new, strict=True):
        column.extend(more)
    if loose is not None:
        loose.update(numbers[row] for row in describer.loose)
    return nodes


def _origin(text: str) -> int:
    if "(" in text:
        return Origin.TEMPORARY if text.endswith("(): " + TEMPORARY) else Origin.VARIABLE
    if not text:
        return Origin.MAIN
    return Origin.OTHER_MODULE if dict.__contains__(sys.modules, text) else Origin.CLASS


def _origins(named: Mapping[int, int], names: Names) -> array[int]:
    """Return each named anchor's origin: by its text, or ``CLASS`` if its name has a parent."""
    origins = array("b", [Origin.CLASS]) * len(named)
    nodes = [*named.values()]
    parents = array("i", map(names.parents.__getitem__, nodes))
    place = -1
    for _ in range(parents.count(-1)):
        place = parents.index(-1, place + 1)
        origins[place] = _origin(names[nodes[place]])
    return origins


class _RowDescriber:
    """Texts of the names of the rows."""

    def __init__(
        self, rows: HolderRows, anchors: Mapping[int, str], names: Names, named: Mapping[int, int]
    ) -> None:
        self._rows = rows
        self._named = named
        self._anchors = anchors
        self._names = names
        self._steps = reference_names.ReferenceNames()
        self.loose: list[int] = []
        """Rows at which names begin without an anchor or at a value on an evaluation stack."""

    def columns(self) -> tuple[array[int], array[int]]:
        """Return each row's kind (-1: no node) and value.

        The row of a local or of a closure's variable begins a name and loses its holder.
        """
        rows = self._rows
        how = rows.how.tobytes()
        kinds = array("b", how.translate(_TO_KINDS))
        values = rows.value
        self._names.texts += self._texts()
        for match in _NEEDS_TEXT.finditer(how):
            row = match.start()
            kind, value = self._describe(row)
            kinds[row] = kind
            values[row] = value if isinstance(value, int) else self._names.number(value)
        return kinds, values

    def _texts(self) -> Iterable[str]:
        keys, written = self._rows.keys, self._rows.written
        if not any(written.tobytes()):
            # all are QUOTED; a fast path, as there may be many
            return map(repr, keys)
        return [_WRITERS[how](key) for how, key in zip(written, keys, strict=True)]

    def _describe(self, row: int) -> tuple[int, int | str]:
        rows = self._rows
        how, value, holder = rows.how[row], rows.value[row], rows.holder[row]
        if how == How.ROOT:
            return TEXT, self._root(row, value)
        if how == How.CLOSURE_VARIABLE:
            rows.holder[row] = -1
            return TEXT, reference_names.closure_text(self._object(rows.holder[holder]), value)
        if how == How.LOCAL:
            rows.holder[row] = -1
            return TEXT, reference_names.local_text(self._object(holder), rows.address[row])
        if how == How.OPAQUE:
            kind = name_of_type(type(self._object(row)))
            return self._steps.step(self._object(holder), rows.address[row], kind)
        if how == How.KEY:
            return TEXT, "{key}"
        return ATTRIBUTE, _ATTRIBUTES[How(how)]

    def _object(self, row: int) -> Any:
        # alive: all rows but roots are held by the heap or the caller
        return ctypes.cast(self._rows.address[row], ctypes.py_object).value

    def _root(self, row: int, origin: int) -> str:
        address = self._rows.address[row]
        node = self._named.get(address)
        known = self._anchors.get(address) if node is None else self._names[node]
        if origin == Origin.TEMPORARY:
            # the slot may be stale, so the object must not be touched
            self.loose.append(row)
            return known or ""
        found = self._object(row)
        if known is not None and origin <= Origin.OTHER_MODULE:
            # a class is better known by its own name than by a variable's
            return known if not is_subtype(type(found), type) else reference_names.class_text(found)
        if origin == Origin.CLASS:
            return reference_names.class_text(found)
        if origin == Origin.OTHER_MODULE:
            return reference_names.module_text(found)
        if origin == Origin.FUNCTION:
            return reference_names.function_text(found)
        if origin in (Origin.GENERATOR, Origin.FRAME):
            return ""
        self.loose.append(row)
        name = reference_names.type_name(found)
        return name if origin == Origin.TOP else f"{UNREACHABLE}: {name}"
