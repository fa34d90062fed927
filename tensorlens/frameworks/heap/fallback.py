"""The same search of the heap as ``search.h``, in Python: slow, for where nothing can be compiled.

It runs no code of the objects it looks at: types' own functions are applied to them.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from tensorlens.frameworks.heap import rows as r
from tensorlens.frameworks.heap.objects import held_tuples
from tensorlens.frameworks.heap.objects import without_tuples as objects
from tensorlens.frameworks.heap.rows import Quest, Rows
from tensorlens.records.names import LONGEST_KEY

__all__ = ["assemble", "dict_of", "kind_of", "objects", "search", "select"]


def select(
    objects: list[Any], kinds: tuple[type, ...], exact: tuple[type, ...]
) -> tuple[list[Any], ...]:
    """Return the objects of each kind, and those whose type is one of ``exact``, in order."""
    lists: tuple[list[Any], ...] = tuple([] for _ in (*kinds, exact))
    exactly = set(map(id, exact))
    known: dict[int, list[list[Any]]] = {}
    for found in objects:
        kind = type(found)
        wanted = known.get(id(kind))
        if wanted is None:
            pairs = zip(kinds, lists, strict=False)
            wanted = [into for base, into in pairs if r.is_subtype(kind, base)]
            if id(kind) in exactly:
                wanted.append(lists[-1])
            known[id(kind)] = wanted
        for into in wanted:
            into.append(found)
    return lists


def search(quest: Quest) -> Rows:
    """Return how the targets are held, as the native search does."""
    tuples = held_tuples([*quest.objects, quest.tuples])
    skip = array("Q", [*quest.skip, id(quest.objects), id(tuples)])
    seeking = _Search(replace(quest, objects=[*quest.objects, *tuples], skip=skip))
    try:
        seeking.run()
        return seeking.rows()
    finally:
        seeking.clear()


def kind_of(kind: type) -> int:
    """Return what kind of holder the objects of a type are."""
    special = _SPECIAL.get(id(kind))
    if special is not None:
        return special
    for base, number in _BASES:
        if r.is_subtype(kind, base):
            return number
    return r.OTHER


# comparing types may run a metaclass's code
_SPECIAL = {id(kind): number for kind, number in r.SPECIAL.items()}

_BASES: tuple[tuple[type, int], ...] = (
    (type, r.TYPE),
    (list, r.LIST),
    (tuple, r.TUPLE),
    (dict, r.DICT),
    (r.MODULES, r.MODULE),
)


def dict_of(holder: Any) -> Any:
    """Return an instance's ``__dict__``, through no property of its own; None if it has none."""
    for kind in r.mro(type(holder)):
        found = _TYPE_DICT(kind).get("__dict__")
        if type(found) is GetSetDescriptorType or type(found) is MemberDescriptorType:
            try:
                return found.__get__(holder)
            except (AttributeError, TypeError):
                return None
    return None


_TYPE_DICT: Callable[[type], Any] = type.__dict__["__dict__"].__get__


@dataclass(slots=True, eq=False)
class _Edge:
    holder: _Node
    child: _Node
    how: int
    value: Any
    order: int

    def rank(self) -> tuple[int, int, bool, int]:
        holder = self.holder
        return holder.distance, holder.origin, self.how == r.OPAQUE, self.order


@dataclass(slots=True, eq=False)
class _Node:
    address: int
    kind: int = r.OTHER
    object: Any = None
    into: list[_Edge] = field(default_factory=list)
    out: list[_Edge] = field(default_factory=list)
    best: _Edge | None = None
    distance: int = -1
    origin: int = 0
    wanted: bool = False
    row: int = -1


class _Search:
    def __init__(self, quest: Quest) -> None:
        self._quest = quest
        self._skip = {*quest.skip, id(quest.objects)}
        self._nodes: dict[int, _Node] = {}
        self._targets = [self._node(address) for address in quest.targets]
        self._temporaries: list[_Node] = []
        self._cap = 4 * len(quest.targets) + 10_000
        self._orders = 0
        self._new = 0
        for address, origin in zip(quest.anchors, quest.origins, strict=True):
            if origin == r.TEMPORARY:
                self._temporaries.append(self._node(address))
            else:
                _begin(self._node(address), origin)
        for found in quest.objects:
            node = self._nodes.get(id(found))
            if node is not None:
                node.object, node.kind = found, kind_of(type(found))

    def _node(self, address: int) -> _Node:
        return self._nodes.setdefault(address, _Node(address))

    def run(self) -> None:
        for _ in range(self._quest.depth):
            wanted = self._choose_wanted()
            if not wanted:
                break
            self._look(wanted)
            self._settle()
        for node in self._temporaries:
            _begin(node, r.TEMPORARY)
        self._settle()
        self._begin_where(r.TOP, lambda node: not node.into)
        self._begin_where(r.CYCLE, lambda node: node.kind == r.OTHER)
        self._begin_where(r.CYCLE, lambda node: True)

    def clear(self) -> None:
        """Leave no cycle that would keep the objects until the next collection."""
        for node in self._nodes.values():
            node.object = node.best = None
            node.into.clear()
            node.out.clear()

    def _begin_where(self, origin: int, suits: Callable[[_Node], bool]) -> None:
        for node in [*self._nodes.values()]:
            if node.distance < 0 and node.out and suits(node):
                _begin(node, origin)
        self._settle()

    def _choose_wanted(self) -> set[int]:
        wanted = set()
        marked: set[int] = set()
        left = [node for node in self._targets if node.distance < 0]
        while left:
            node = left.pop()
            if node.address in marked:
                continue
            marked.add(node.address)
            if not node.wanted:
                node.wanted = True
                wanted.add(node.address)
            left += [edge.holder for edge in node.into if edge.holder.distance < 0]
        return wanted

    def _look(self, wanted: set[int]) -> None:
        self._new = 0
        for holder in self._quest.objects:
            kind = kind_of(type(holder))
            if kind == r.ATOMIC or id(holder) in self._skip:
                continue
            # the same in one probe for most
            if wanted.isdisjoint(map(id, _referents(holder, kind))):
                continue
            node = self._nodes.get(id(holder))
            for child, how, value in _edges(holder, kind):
                if id(child) not in wanted:
                    continue
                if node is None:
                    self._new += 1
                    if self._new > self._cap:
                        break
                    node = self._node(id(holder))
                node.object, node.kind = holder, kind
                if kind in _ORIGINS:
                    _begin(node, _ORIGINS[kind])
                self._orders += 1
                edge = _Edge(node, self._nodes[id(child)], how, value, self._orders)
                node.out.append(edge)
                edge.child.into.append(edge)

    def _settle(self) -> None:
        """Give a name to all that can be reached from what has one, the nearest first."""
        distance = 0
        while distance <= max((node.distance for node in self._nodes.values()), default=-1):
            steps = []
            for node in self._nodes.values():
                if node.distance < 0:
                    named = [edge for edge in node.into if edge.holder.distance >= 0]
                    node.best = min(named, key=_Edge.rank, default=None)
                    if node.best is not None and node.best.holder.distance == distance:
                        steps.append((node, node.best.holder))
            distance += 1
            for node, holder in steps:
                node.distance, node.origin = distance, holder.origin

    def rows(self) -> Rows:
        used: dict[int, _Node] = {}
        for target in self._targets:
            node: _Node | None = target if target.distance >= 0 else None
            while node is not None and node.address not in used:
                used[node.address] = node
                node = node.best.holder if node.best else None
        writer = _Writer(self._quest.first_text)
        for node in sorted(used.values(), key=lambda node: node.distance):
            writer.write(node)
        rows = writer.rows
        for node in self._targets:
            is_top = node.origin == r.TOP and node.best is None
            rows.targets.append(-1 if is_top else node.row)
        return rows


_ORIGINS = {
    r.TYPE: r.CLASS,
    r.MODULE: r.OTHER_MODULE,
    r.FUNCTION: r.OF_FUNCTION,
    r.GENERATOR: r.OF_GENERATOR,
    r.FRAME: r.OF_FRAME,
}


def _begin(node: _Node, origin: int) -> None:
    if node.distance < 0:
        node.distance, node.origin = 0, origin


def _referents(holder: Any, kind: int) -> list[Any]:
    if kind == r.MODULE:
        # _asyncio of Python 3.12 shows freed objects: holding them breaks it for good
        return [r.vars_of_module(holder)]
    return gc.get_referents(holder)


def _edges(holder: Any, kind: int) -> Iterator[tuple[Any, int, Any]]:
    if kind == r.FUNCTION:
        yield from _function_edges(holder)
        return
    if kind == r.CELL:
        yield from ((child, r.CONTENTS, 0) for child in gc.get_referents(holder))
        return
    if kind == r.LIST:
        yield from ((item, r.ITEM, i) for i, item in enumerate(list.__iter__(holder)))
    elif kind == r.TUPLE:
        yield from ((item, r.ITEM, i) for i, item in enumerate(tuple.__iter__(holder)))
    elif kind == r.DICT:
        for key, value in [*dict.items(holder)]:
            yield value, r.VALUE, key
            yield key, r.KEY, 0
    if any(type(holder) is plain for plain in (list, tuple, dict)):
        return
    for child in _referents(holder, kind):
        is_dict = kind_of(type(child)) == r.DICT
        if kind in (r.TYPE, r.MODULE):
            if is_dict:
                yield child, r.VARS, 0
        elif kind in (r.GENERATOR, r.FRAME):
            yield child, r.LOCAL, 0
        elif is_dict and dict_of(holder) is child:
            yield child, r.VARS, 0
        else:
            yield child, r.OPAQUE, 0


_BUILTINS = FunctionType.__dict__["__builtins__"].__get__


def _function_edges(holder: FunctionType) -> Iterator[tuple[Any, int, Any]]:
    fields = [
        (holder.__defaults__, r.DEFAULTS),
        (holder.__kwdefaults__, r.KEYWORD_DEFAULTS),
        (holder.__closure__, r.CLOSURE),
    ]
    yield from ((child, how, 0) for child, how in fields if child is not None)
    others = (holder.__globals__, _BUILTINS(holder), holder.__kwdefaults__)
    for child in gc.get_referents(holder):
        # asking for it would make one
        if type(child) is dict and all(child is not other for other in others):
            if holder.__dict__ is child:
                yield child, r.VARS, 0


class _Writer:
    def __init__(self, first_text: int) -> None:
        self.rows = Rows()
        self._first_text = first_text
        self._numbers: dict[tuple[int, bool], int] = {}
        self._spaces: list[bool] = []

    def write(self, node: _Node) -> None:
        rows = self.rows
        node.row = len(rows.how)
        how, value, holder = r.ROOT, node.origin, -1
        space = node.origin in (r.MAIN, r.OTHER_MODULE)
        if node.best is not None:
            holder = node.best.holder.row
            space = node.best.how == r.VARS
            how, value = self._step(node.best, holder)
            if how == r.ATTRIBUTE and node.kind == r.DICT and value in r.TRANSPARENT:
                how, value, space = r.ALIAS, 0, True
        if how in (r.VALUE, r.ATTRIBUTE):
            value = self._number(value, how == r.ATTRIBUTE)
        rows.holder.append(holder)
        rows.how.append(how)
        rows.value.append(value)
        rows.address.append(node.address)
        self._spaces.append(space)

    def _step(self, edge: _Edge, holder: int) -> tuple[int, Any]:
        how, value = edge.how, edge.value
        held_by, held_value = self.rows.how[holder], self.rows.value[holder]
        if how == r.OPAQUE:
            name = _attribute_of(edge.holder.object, edge.child.address)
            return (how, 0) if name is None else (r.ATTRIBUTE, name)
        if how == r.VALUE:
            if type(value) is int and -(2**63) <= value < 2**63:
                return r.ITEM, value
            if self._spaces[holder] and type(value) is str:
                return r.ATTRIBUTE, value
        elif how == r.ITEM and held_by == r.ALIAS and held_value == r.CLOSURE:
            return r.FREE, value
        elif how == r.CONTENTS and held_by in (r.FREE, r.LOCAL):
            return r.ALIAS, value
        elif how in (r.VARS, r.CLOSURE):
            return r.ALIAS, how
        return how, value

    def _number(self, key: Any, attribute: bool) -> int:
        number = self._numbers.setdefault((id(key), attribute), len(self._numbers))
        if number == len(self.rows.keys):
            self.rows.keys.append(key)
            is_short = type(key) is str and len(key) <= LONGEST_KEY
            written = r.BARE if attribute else r.QUOTED if is_short else r.DESCRIBED
            self.rows.written.append(written)
        return self._first_text + number


def _attribute_of(holder: Any, address: int) -> str | None:
    attributes = dict_of(holder)
    if type(attributes) is dict:
        for name, value in [*attributes.items()]:
            if id(value) == address and type(name) is str:
                return name
    return None


def assemble(
    rows: Rows, kind: array[int], value: array[int], first: int
) -> tuple[array[int], array[int], array[int], array[int], array[int]]:
    """Return each target's node and each row's, and parents, kinds, values of the new nodes."""
    numbers, parents, kinds, values = array("i"), array("i"), array("b"), array("q")
    for from_row, kind_of_row, value_of_row in zip(rows.holder, kind, value, strict=True):
        parent = -1 if from_row < 0 or kind_of_row == -2 else numbers[from_row]
        if kind_of_row == -1:
            numbers.append(parent)
            continue
        numbers.append(first + len(parents))
        parents.append(parent)
        kinds.append(max(kind_of_row, 0))
        values.append(value_of_row)
    numbers.append(-1)
    return array("i", map(numbers.__getitem__, rows.targets)), numbers, parents, kinds, values
