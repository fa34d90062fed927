"""Reading the heap runs none of the code of what it finds."""

import gc
import sys
import types
import weakref
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from tensorlens.heap import anchors, find_holders, native, objects, select
from tensorlens.records import Names

ran: list[str] = []


def _trap(name: str) -> Any:
    def trap(self: Any, *arguments: Any) -> Any:
        ran.append(name)
        raise RuntimeError(name)

    return trap


class HostileMeta(type):
    __eq__ = _trap("metaclass __eq__")
    __hash__ = _trap("metaclass __hash__")
    __subclasscheck__ = _trap("__subclasscheck__")
    __instancecheck__ = _trap("__instancecheck__")
    __getattribute__ = _trap("metaclass __getattribute__")


_METHODS = ("__eq__", "__hash__", "__len__", "__getattr__", "__repr__", "__iter__", "__bool__")


class Hostile:
    __class__ = property(_trap("__class__"))  # type: ignore[assignment]
    for _name in _METHODS:
        locals()[_name] = _trap(_name)

    def __getattribute__(self, name: str) -> Any:
        ran.append(f"__getattribute__ {name}")
        raise RuntimeError(name)


class HostileList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = __eq__ = _trap("list")  # type: ignore[assignment]


class HostileDict(dict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __len__ = __getitem__ = _trap("dict")  # type: ignore


class OfMeta(metaclass=HostileMeta):
    pass


class LazyModule(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        ran.append(f"module {name}")
        raise RuntimeError(name)


class Thing:
    pass


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(objects, "native", lambda: None)
    elif native.native() is None:
        pytest.skip("no compiler")


def find(thing: Any, root: Any) -> str:
    if native.native() is None:
        pytest.skip("no compiler")
    names = Names()
    (node,) = find_holders(
        gc.get_objects(), array("Q", [id(thing)]), {id(root): "f(): root"}, names
    )
    return names[node]


def test_select_asks_the_type_only(engine: None) -> None:
    one, hostile, other = Thing(), Hostile(), OfMeta()
    dead = weakref.proxy(Thing())
    listed = [one, hostile, dead, other, 3, Thing]
    things, hostiles, metas, _ = select(listed, (Thing, Hostile, type(other)))
    assert len(things) == len(hostiles) == len(metas) == 1
    assert things[0] is one and hostiles[0] is hostile and metas[0] is other


def test_select_takes_subclasses_in_order(engine: None) -> None:
    class Below(Thing):
        pass

    listed = [Below(), 1, Thing(), Below()]
    found, below, nothing, exact = select(listed, (Thing, Below, complex), (Thing, int))
    assert found == [listed[0], listed[2], listed[3]]
    assert below == [listed[0], listed[3]]
    assert nothing == []
    assert exact == [listed[1], listed[2]]
    assert select([], (Thing,)) == ([], [])


def test_hostile_holders() -> None:
    thing = Thing()
    by_attribute = Hostile()
    object.__setattr__(by_attribute, "kept", thing)
    assert find(thing, by_attribute) == "f(): root.kept"


def test_hostile_containers() -> None:
    thing = Thing()
    items, entries = HostileList(), HostileDict()
    list.append(items, entries)
    dict.__setitem__(entries, "k", thing)
    assert find(thing, items) == "f(): root[0]['k']"


def test_hostile_keys() -> None:
    thing = Thing()

    class Key:
        def __hash__(self) -> int:
            return 1

        __repr__ = _trap("key")

    root = {Key(): [thing]}
    assert find(thing, root) == "f(): root[<Key>][0]"


def test_hostile_metaclass() -> None:
    thing, root = Thing(), OfMeta()
    object.__setattr__(root, "kept", thing)
    assert find(thing, root) == "f(): root.kept"


def test_dict_property_does_not_run() -> None:
    class Shadowed:
        __dict__ = property(_trap("__dict__"))  # type: ignore[assignment]

    thing, root = Thing(), Shadowed()
    root.kept = thing  # type: ignore[attr-defined]
    assert find(thing, root).startswith("f(): root.")


def test_hostile_target() -> None:
    thing = Hostile()
    root = [thing]
    assert find(thing, root) == "f(): root[0]"


def test_anything_in_sys_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = LazyModule("heap_lazy")
    monkeypatch.setitem(sys.modules, "heap_lazy", lazy)
    monkeypatch.setitem(sys.modules, "heap_odd", Hostile())  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "heap_none", None)  # type: ignore[misc]
    thing = Thing()
    types.ModuleType.__dict__["__dict__"].__get__(lazy)["thing"] = thing
    begin = {place: text for place, text in anchors().items() if "(" not in text}
    assert "heap_lazy" in begin.values()
    assert "heap_odd" not in begin.values()
    names = Names()
    (node,) = find_holders(gc.get_objects(), array("Q", [id(thing)]), begin, names)
    assert names[node] == "heap_lazy.thing"


def test_finalizers_do_not_run_early() -> None:
    class Final:
        def __del__(self) -> None:
            ran.append("__del__")

    root = [Final()]
    assert find(root[0], root) == "f(): root[0]"
    assert ran == []
    root.clear()
    assert ran == ["__del__"]
    ran.clear()
