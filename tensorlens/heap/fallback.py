"""The same search of the heap as ``search.h``, in Python: slow, for where nothing can be compiled.

It runs no code of the objects it looks at: types' own functions are applied to them.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

from tensorlens.heap import rows as r
from tensorlens.heap.objects import held_tuples
from tensorlens.heap.objects import without_tuples as objects
from tensorlens.heap.rows import Quest, Rows
from tensorlens.records.names import LONGEST_KEY

__all__ = ["assemble", "dict_of", "kind_of", "objects", "search", "select"]


def select(
    objects: list[Any], kinds: tuple[type, ...], exact: tuple[type, ...]
) -> tuple[list[Any], ...]:
    """Return the objects of each kind, and those whose type is one of ``exact``, in order."""
    exactly = set(map(id, exact))
    types = {id(kind): kind for kind in map(type, objects)}.values()
    chosen = [{id(kind) for kind in types if r.is_subtype(kind, base)} for base in kinds]
    return tuple([each for each in objects if id(type(each)) in of] for of in (*chosen, exactly))


def search(quest: Quest) -> Rows:
    """Return how the targets are held, as the native search does."""
    seeking = _Search(quest)
    seeking.run()
    return seeking.rows()


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
    return dict_getter(type(holder))(holder)


def dict_getter(kind: type) -> Callable[[Any], Any]:
    """Return what gives the ``__dict__`` of an instance of a type, as :func:`dict_of` does."""
    for base in r.mro(kind):
        found = _TYPE_DICT(base).get("__dict__")
        if type(found) is GetSetDescriptorType:
            return found.__get__
        if type(found) is MemberDescriptorType:
            return lambda holder: _slot(found, holder)
    return lambda holder: None


def _slot(member: MemberDescriptorType, holder: Any) -> Any:
    try:
        return member.__get__(holder)
    except (AttributeError, TypeError):
        return None


_TYPE_DICT: Callable[[type], Any] = type.__dict__["__dict__"].__get__


class _Edge(NamedTuple):
    holder: int
    child: int
    how: int
    value: Any


class _Search:
    """Objects by their addresses: who holds them, and by which edge their names come."""

    def __init__(self, quest: Quest) -> None:
        tuples = held_tuples([*quest.objects, quest.tuples])
        self._quest, self._heap = quest, [*quest.objects, *tuples]
        self._skip = {*quest.skip, id(quest.objects), id(tuples), id(self._heap)}
        targets = {*quest.targets}
        self._known = {id(each): each for each in self._heap if id(each) in targets}
        """Targets, and what holds something on the way to one."""
        self._into: dict[int, list[int]] = {}
        self._out: dict[int, list[int]] = {}
        self._edges: list[_Edge] = []
        self._names: dict[int, tuple[int, int, int]] = {}
        """Of what has a name: its length, where it begins, and the edge it comes by or -1."""

    def run(self) -> None:
        anchors = [*zip(self._quest.anchors, self._quest.origins, strict=True)]
        for address, origin in anchors:
            if origin != r.TEMPORARY:
                self._names.setdefault(address, (0, origin, -1))
        asked: set[int] = set()
        for _ in range(self._quest.depth):
            wanted = self._nameless() - asked
            if not wanted:
                break
            asked |= wanted
            self._look(wanted)
            self._settle()
        self._begin(r.TEMPORARY, [address for address, origin in anchors if origin == r.TEMPORARY])
        self._begin(r.TOP, self._out.keys() - self._into.keys())
        of_types = (each for each in self._out if kind_of(type(self._known[each])) == r.OTHER)
        self._begin(r.CYCLE, of_types)
        self._begin(r.CYCLE, self._out)

    def _begin(self, origin: int, addresses: Iterable[int]) -> None:
        for address in [each for each in addresses if each not in self._names]:
            self._names.setdefault(address, (0, origin, -1))
        self._settle()

    def _nameless(self) -> set[int]:
        """Return the targets that have no name, and all that leads to them."""
        found: set[int] = set()
        left = [*self._quest.targets]
        while left:
            address = left.pop()
            if address not in found and address not in self._names:
                found.add(address)
                left += [self._edges[edge].holder for edge in self._into.get(address, ())]
        return found

    def _look(self, wanted: set[int]) -> None:
        new = 0
        for holder in self._heap:
            kind, address = kind_of(type(holder)), id(holder)
            if kind == r.ATOMIC or address in self._skip:
                continue
            # the same in one probe for most
            if wanted.isdisjoint(map(id, _referents(holder, kind))):
                continue
            for child, how, value in _edges(holder, kind):
                if id(child) not in wanted:
                    continue
                new += address not in self._known
                if new > 4 * len(self._quest.targets) + 10_000:
                    break
                self._known[address] = holder
                if kind in _ORIGINS:
                    self._names.setdefault(address, (0, _ORIGINS[kind], -1))
                self._into.setdefault(id(child), []).append(len(self._edges))
                self._out.setdefault(address, []).append(len(self._edges))
                self._edges.append(_Edge(address, id(child), how, value))

    def _settle(self) -> None:
        """Give a name to all that can be reached from what has one, the nearest first."""
        waiting = [self._rank(edge) for each in self._names for edge in self._out.get(each, ())]
        heapify(waiting)
        while waiting:
            distance, origin, _, edge = heappop(waiting)
            child = self._edges[edge].child
            if child not in self._names:
                self._names[child] = distance + 1, origin, edge
                for onward in self._out.get(child, ()):
                    heappush(waiting, self._rank(onward))

    def _rank(self, edge: int) -> tuple[int, int, bool, int]:
        """Fewer steps win, then where the name begins, then what can be written down."""
        distance, origin, _ = self._names[self._edges[edge].holder]
        return distance, origin, self._edges[edge].how == r.OPAQUE, edge

    def rows(self) -> Rows:
        used: dict[int, int] = {}
        for address in self._quest.targets:
            while address in self._names and address not in used:
                used[address], _, number = self._names[address]
                address = self._edges[number].holder if number >= 0 else -1
        writer = _Writer(self._quest.first_text)
        for address in sorted(used, key=used.__getitem__):
            _, origin, number = self._names[address]
            edge = self._edges[number] if number >= 0 else None
            holder = self._known.get(edge.holder) if edge is not None else None
            writer.write(address, self._known.get(address), origin, edge, holder)
        for address in self._quest.targets:
            _, origin, number = self._names.get(address, (0, r.TOP, -1))
            is_top = origin == r.TOP and number < 0
            writer.rows.targets.append(-1 if is_top else writer.numbers[address])
        return writer.rows


_ORIGINS = {
    r.TYPE: r.CLASS,
    r.MODULE: r.OTHER_MODULE,
    r.FUNCTION: r.OF_FUNCTION,
    r.GENERATOR: r.OF_GENERATOR,
    r.FRAME: r.OF_FRAME,
}


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
        self.numbers: dict[int, int] = {}
        """The row of each address."""
        self._keys: dict[tuple[int, bool], int] = {}
        self._first_text = first_text
        self._spaces: list[bool] = []

    def write(self, address: int, found: Any, origin: int, edge: _Edge | None, held: Any) -> None:
        rows = self.rows
        self.numbers[address] = len(rows.how)
        how, value, holder = r.ROOT, origin, -1
        space = origin in (r.MAIN, r.OTHER_MODULE)
        if edge is not None:
            holder, space = self.numbers[edge.holder], edge.how == r.VARS
            how, value = self._step(edge, holder, held)
            is_dict = how == r.ATTRIBUTE and kind_of(type(found)) == r.DICT
            if is_dict and value in r.TRANSPARENT:
                how, value, space = r.ALIAS, 0, True
        if how in (r.VALUE, r.ATTRIBUTE):
            value = self._key(value, how == r.ATTRIBUTE)
        rows.holder.append(holder)
        rows.how.append(how)
        rows.value.append(value)
        rows.address.append(address)
        self._spaces.append(space)

    def _step(self, edge: _Edge, holder: int, held: Any) -> tuple[int, Any]:
        how, value = edge.how, edge.value
        held_by, held_value = self.rows.how[holder], self.rows.value[holder]
        if how == r.OPAQUE:
            name = _attribute_of(held, edge.child)
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

    def _key(self, key: Any, attribute: bool) -> int:
        number = self._keys.setdefault((id(key), attribute), len(self._keys))
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
