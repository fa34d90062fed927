"""Walks what modules and optimizers hold: names for a hundred thousand tensors in one call.

Natively, modules and state made of plain dicts are read; what is not, and everything where there
is no compiler, is read in Python. Neither runs code of the objects.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensorlens.frameworks.heap.native import NativeHeap, native, pointer
from tensorlens.frameworks.heap.rows import is_subtype, zeros
from tensorlens.records.names import ATTRIBUTE, TEXT, Names

MOST_PLACES = 100_000
"""Modules that contain each other many times over have more paths than anyone would read."""

Registries: TypeAlias = tuple[Any, Any, Any]
"""Parameters, buffers, modules: each the ``(key, item)`` of one registry."""

ReadModule: TypeAlias = "Callable[[Any], Registries | None]"
"""Gives a module's registries, or None for what is no module."""

_UNREAD = 2


@dataclass(slots=True)
class Walk:
    """New nodes of names, the tensors met with the node of each, and the modules."""

    parents: array[int] = field(default_factory=lambda: array("i"))
    kinds: array[int] = field(default_factory=lambda: array("b"))
    values: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str] = field(default_factory=list)
    """The new texts, one for each object that is a key."""
    tensors: list[Any] = field(default_factory=list)
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    nodes: array[int] = field(default_factory=lambda: array("i"))
    buffers: array[int] = field(default_factory=lambda: array("b"))
    """For each tensor, whether it is a buffer."""
    modules: array[int] = field(default_factory=lambda: array("Q"))
    """The addresses of modules, each once or more often."""
    paths: array[int] = field(default_factory=lambda: array("i"))
    """The node of each module, the first one being its name."""
    done: int = 0
    """How many of the roots were walked."""

    def write_to(self, names: Names) -> None:
        """Append the new nodes; ``names`` has not changed since the walk."""
        names.texts += self.keys
        names.parents.extend(self.parents)
        names.kinds.extend(self.kinds)
        names.values.extend(self.values)


@dataclass(slots=True)
class Kinds:
    """What counts as a module and as a tensor, and how Python reads a module."""

    module: type
    tensor: type
    read: ReadModule


def walk_registries(
    roots: list[Any], prefixes: array[int], names: Names, kinds: Kinds
) -> Iterator[Walk]:
    """Walk modules, each depth first; give parts of the walk in order, written to ``names``.

    A module that contains itself is not entered again on its own path. One met again on another
    path is walked again: what it holds has a name by each. Of a root at most
    :data:`MOST_PLACES` places are walked.

    Args:
        roots: modules, kept alive by the caller.
        prefixes: for each root the node that stands for it, type code ``i``.
        names: takes the new nodes.
        kinds: what is looked for.

    Raises:
        MemoryError: there is none left.
    """
    first, reader = 0, native()
    while first < len(roots):
        if reader is not None:
            walk = _registries_natively(reader, roots, prefixes, first, names, kinds)
            walk.write_to(names)
            first += walk.done
            yield walk
        if first < len(roots):
            walk = registries_in_python(roots[first], prefixes[first], names, kinds)
            walk.write_to(names)
            first += 1
            yield walk


def _registries_natively(
    reader: NativeHeap,
    roots: list[Any],
    prefixes: array[int],
    first: int,
    names: Names,
    kinds: Kinds,
) -> Walk:
    """Walk the roots from number ``first`` on, up to one that has something unusual below it."""
    found = reader.call("tl_walk_registries", ctypes.c_void_p)(
        ctypes.py_object(roots),
        pointer(prefixes),
        *map(ctypes.c_int64, (first, len(names), len(names.texts))),
        *map(ctypes.py_object, (kinds.module, kinds.tensor)),
        ctypes.c_int64(MOST_PLACES),
    )
    return _read(reader, found)


def _read(reader: NativeHeap, found: int | None) -> Walk:
    if not found:
        raise MemoryError
    handle = ctypes.c_void_p(found)
    try:
        walk, lengths = Walk(), zeros("q", 3)
        lists = map(ctypes.py_object, (walk.keys, walk.tensors))
        walk.done = reader.call("tl_walk_look", ctypes.c_int64)(handle, pointer(lengths), *lists)
        if walk.done < 0:
            raise MemoryError
        nodes, tensors, modules = lengths
        walk.parents, walk.kinds, walk.values = (zeros(code, nodes) for code in "ibq")
        walk.addresses, walk.nodes, walk.buffers = (zeros(code, tensors) for code in "Qib")
        walk.modules, walk.paths = zeros("Q", modules), zeros("i", modules)
        new = (walk.parents, walk.kinds, walk.values)
        given = (walk.addresses, walk.nodes, walk.buffers, walk.modules, walk.paths)
        reader.call("tl_walk_read", None)(handle, *map(pointer, (*new, *given)))
        return walk
    finally:
        reader.call("tl_walk_release", None)(handle)


class _Writer:
    def __init__(self, names: Names) -> None:
        self.walk = Walk()
        self._first_node, self._first_text = len(names), len(names.texts)
        self._numbers: dict[int, int] = {}

    def node(self, parent: int, kind: int, value: int) -> int:
        walk = self.walk
        walk.parents.append(parent)
        walk.kinds.append(kind)
        walk.values.append(value)
        return self._first_node + len(walk.parents) - 1

    def attribute(self, parent: int, key: str) -> int:
        number = self._numbers.setdefault(id(key), len(self._numbers))
        if number == len(self.walk.keys):
            self.walk.keys.append(key)
        return self.node(parent, ATTRIBUTE, self._first_text + number)

    def give(self, tensor: Any, node: int, buffer: bool) -> None:
        walk = self.walk
        walk.tensors.append(tensor)
        walk.addresses.append(id(tensor))
        walk.nodes.append(node)
        walk.buffers.append(buffer)


_Place: TypeAlias = "tuple[Any, int, _Place | None]"
"""A module, the node of its path, and the place of the module it is in."""


def registries_in_python(root: Any, prefix: int, names: Names, kinds: Kinds) -> Walk:
    """Walk one root, as the native walk does; ``names`` stays as it is."""
    writer, seen = _Writer(names), set()
    walk, waiting = writer.walk, [_place(root, prefix)]
    # depth first, as named_parameters() goes: of tied weights the same name comes first
    for _ in range(MOST_PLACES):
        if not waiting:
            break
        place = waiting.pop()
        module, path, _ = place
        registries = kinds.read(module)
        if registries is None:
            continue
        if id(module) not in seen:
            seen.add(id(module))
            walk.modules.append(id(module))
            walk.paths.append(path)
        elif _is_inside_itself(place):
            continue
        parameters, buffers, modules = map(_texts_only, registries)
        for entries, is_buffer in ((parameters, False), (buffers, True)):
            for name, item in entries:
                if is_subtype(type(item), kinds.tensor):
                    writer.give(item, writer.attribute(path, name), is_buffer)
        children = [
            _place(child, writer.attribute(path, name), place)
            for name, child in modules
            if child is not None
        ]
        waiting += reversed(children)
    walk.done = 1
    return walk


def _place(module: Any, path: int, above: _Place | None = None) -> _Place:
    return module, path, above


def _texts_only(entries: Any) -> list[tuple[str, Any]]:
    return [(key, item) for key, item in entries if type(key) is str]


def _is_inside_itself(place: _Place) -> bool:
    module, _, above = place
    while above is not None:
        if above[0] is module:
            return True
        above = above[2]
    return False


def roots_among(modules: list[Any], kinds: Kinds) -> list[Any]:
    """Return the modules that are not inside another of them, in order."""
    reader, states = native(), array("b", [_UNREAD]) * len(modules)
    if reader is not None and modules:
        states = zeros("b", len(modules))
        lists = map(ctypes.py_object, (modules, kinds.module))
        if reader.call("tl_walk_inside")(*lists, pointer(states)):
            raise MemoryError
    inside = set()
    for module, state in zip(modules, states, strict=True):
        registries = kinds.read(module) if state & _UNREAD else None
        for _, child in _texts_only(registries[2]) if registries is not None else ():
            if child is not module:
                inside.add(id(child))
    return [
        module
        for module, state in zip(modules, states, strict=True)
        if not state & ~_UNREAD and id(module) not in inside
    ]


@dataclass(slots=True)
class Given:
    """Which node an object has been given; the first counts."""

    addresses: array[int] = field(default_factory=lambda: array("Q"))
    nodes: array[int] = field(default_factory=lambda: array("i"))


def walk_state(
    groups: Any, state: Any, prefix: int, names: Names, given: Given, tensor: type
) -> Walk | None:
    """Walk an optimizer's state, ``{parameter: {name: tensor or number}}``, and write the names.

    Each parameter's name goes on from ``prefix``: ``Adam.fc1.weight.exp_avg``. A parameter that
    has no name adds none.

    Returns:
        None where the state is not made like that, or a parameter of a group has no name; nothing
        is written then.

    Raises:
        MemoryError: there is none left.
    """
    no_text = names.number("")
    reader = native()
    if reader is None:
        walk = state_in_python(groups, state, prefix, names, given, tensor)
    else:
        counts = array("q", (len(names), len(given.addresses), no_text))
        known = (names.parents, names.kinds, names.values, given.addresses, given.nodes)
        found = reader.call("tl_walk_state", ctypes.c_void_p)(
            *map(ctypes.py_object, (groups, state)),
            *map(ctypes.c_int64, (prefix, len(names.texts))),
            ctypes.py_object(tensor),
            *map(pointer, (counts, *known)),
        )
        walk = _read(reader, found)
    if not walk.done or not all(map(str.isidentifier, walk.keys)):
        return None
    walk.write_to(names)
    return walk


_PLAIN = (int, float, bool, str, type(None))


def state_in_python(
    groups: Any, state: Any, prefix: int, names: Names, given: Given, tensor: type
) -> Walk:
    """Walk an optimizer's state, as the native walk does; ``names`` stays as it is."""
    writer, no_text = _Writer(names), names.number("")
    nodes = dict(zip(reversed(given.addresses), reversed(given.nodes), strict=True))
    if not _knows(groups, nodes) or not is_subtype(type(state), dict):
        return writer.walk
    copies = {-1: prefix}
    for parameter, slots in list(dict.items(state)):
        if not is_subtype(type(parameter), tensor) or not is_subtype(type(slots), dict):
            return writer.walk
        known = nodes.get(id(parameter), -1)
        node = _copy(known, copies, (names, no_text), writer)
        for key, item in list(dict.items(slots)):
            if any(type(item) is plain for plain in _PLAIN):
                continue
            if type(key) is not str or not is_subtype(type(item), tensor):
                return writer.walk
            writer.give(item, writer.attribute(node, key), False)
    writer.walk.done = 1
    return writer.walk


def _knows(groups: Any, nodes: dict[int, int]) -> bool:
    if type(groups) is not list:
        return False
    for group in groups:
        if not is_subtype(type(group), dict):
            return False
        entries = _texts_only(dict.items(group))
        members = [item for key, item in entries if key == "params"]
        if not members or type(members[0]) is not list:
            return False
        if not all(id(parameter) in nodes for parameter in members[0]):
            return False
    return True


def _copy(node: int, copies: dict[int, int], known: tuple[Names, int], writer: _Writer) -> int:
    """Return the same name below the optimizer's."""
    (names, no_text), way = known, []
    while node not in copies:
        way.append(node)
        node = names.parents[node]
    last = copies[node]
    for following in reversed(way):
        kind, value = names.kinds[following], names.values[following]
        if kind != TEXT or value != no_text:
            last = writer.node(last, ATTRIBUTE if kind == TEXT else kind, value)
        copies[following] = last
    return last


def assign(
    rows: array[int],
    nodes: array[int],
    roles: array[int],
    columns: tuple[array[int], array[int]],
) -> Sequence[int]:
    """Give each row without a node the first of ``nodes`` and ``roles`` that is for it.

    Args:
        rows: the row of each of ``nodes``, or -1.
        nodes: type code ``i``.
        roles: type code ``b``.
        columns: each row's node, or -1, and its role; these are changed.

    Returns:
        The numbers, among ``nodes``, of those that are for a row that had one already.
    """
    node_of, role_of = columns
    reader = native()
    if reader is not None:
        later = zeros("i", len(rows))
        count = reader.call("tl_walk_assign", ctypes.c_int64)(
            ctypes.c_int64(len(rows)), *map(pointer, (rows, nodes, roles, node_of, role_of, later))
        )
        return later[:count]
    others = []
    for index, (row, node, role) in enumerate(zip(rows, nodes, roles, strict=True)):
        if row >= 0 and node_of[row] < 0:
            node_of[row], role_of[row] = node, role
        elif row >= 0:
            others.append(index)
    return others


def places_of_none(numbers: array[int]) -> Sequence[int]:
    """Return where ``numbers``, type code ``i``, are -1."""
    reader = native()
    if reader is None:
        return [place for place, number in enumerate(numbers) if number < 0]
    places = zeros("i", len(numbers) + 1)
    count = reader.call("tl_walk_none", ctypes.c_int64)(
        ctypes.c_int64(len(numbers)), *map(pointer, (numbers, places))
    )
    return places[:count]
