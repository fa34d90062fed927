"""All ways and only those: several, none, cycles, what cannot be seen, what must not run."""

import atexit
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tensorlens.heap import cycle, frames, reference_paths
from tensorlens.records import Reference, ReferencePath

pytestmark = pytest.mark.skipif(bool(frames.why_no_locals()), reason="frames cannot be read here")

HERE = __name__
OUTSIDE = "a loop or a call that runs, or a holder outside of Python"


class Thing:
    pass


class Node:
    def __init__(self) -> None:
        self.children: list[Any] = []
        self.parent: Any = None


kept: list[Any] = []
others: list[Any] = []


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    yield
    kept.clear()
    others.clear()
    gc.collect()


def found(ref: Any, **how: Any) -> list[ReferencePath]:
    return reference_paths([ref()], **how)[0]


def told(ref: Any, **how: Any) -> list[str]:
    return [str(path) for path in found(ref, **how)]


def circle(ref: Any) -> str:
    return str(cycle(ref()))


def add(*lists: list[Any]) -> Any:
    thing = Thing()
    for each in lists:
        each.append(thing)
    return weakref.ref(thing)


def test_all_holders_are_listed() -> None:
    ref = add(kept, others)
    texts = [f"{HERE}.kept (global) -> list[0]", f"{HERE}.others (global) -> list[0]"]
    assert sorted(told(ref)) == texts


def test_all_roots_of_one_holder_are_listed() -> None:
    inner: list[Any] = []
    kept.append(inner)
    others.append([inner])
    ref = add(inner)
    del inner
    assert told(ref) == [
        f"{HERE}.kept (global) -> list[0] -> list[0]",
        f"{HERE}.others (global) -> list[0] -> list[0] -> list[0]",
    ]


def test_twice_in_one_list_is_one_path() -> None:
    ref = add(kept, kept)
    assert told(ref) == [f"{HERE}.kept (global) -> list[0]"]


def test_most_paths_are_limited() -> None:
    lists: list[list[Any]] = [[] for _ in range(9)]
    ref = add(*lists)
    name = "test_most_paths_are_limited(): lists (local)"
    assert told(ref) == [f"{name} -> list[{place}] -> list[0]" for place in range(5)]


def test_paths_of_two_targets() -> None:
    first, second = add(kept), add(others)
    texts = [[str(path) for path in each] for each in reference_paths([first(), second(), first()])]
    one, other = f"{HERE}.kept (global) -> list[0]", f"{HERE}.others (global) -> list[0]"
    assert texts == [[one], [other], [one]]


def test_targets_that_hold_each_other() -> None:
    thing = Thing()
    thing.inner = Thing()  # type: ignore[attr-defined]
    kept.append(thing)
    refs = weakref.ref(thing), weakref.ref(thing.inner)  # type: ignore[attr-defined]
    del thing
    texts = [[str(path) for path in each] for each in reference_paths([ref() for ref in refs])]
    name = f"{HERE}.kept (global) -> list[0]"
    assert texts == [[name], [f"{name} -> Thing.inner (attribute)"]]


def test_paths_without_targets() -> None:
    assert reference_paths([]) == []


def test_shared_constants_have_no_path() -> None:
    assert reference_paths([None, 1])[0] == []


def test_paths_skip_holders() -> None:
    ref = add(kept, others)
    assert told(ref, skip=[id(others)]) == [f"{HERE}.kept (global) -> list[0]"]


def test_paths_too_deep() -> None:
    chain: list[Any] = []
    kept.append(chain)
    for _ in range(25):
        chain.append([])
        chain = chain[0]
    ref = add(chain)
    del chain
    (path,) = found(ref)
    assert path.is_cut
    assert str(path) == " -> ".join(["list[0]"] * 20)


def test_garbage_is_not_held() -> None:
    node = Node()
    node.parent = [node]
    ref = weakref.ref(node)
    del node
    gc.disable()
    try:
        assert told(ref) == []
        assert circle(ref) == "Node.parent -> list[0] -> Node"
    finally:
        gc.enable()


def test_a_cycle_of_several() -> None:
    parent, children = Node(), [Node() for _ in range(5)]
    parent.children = children
    children[3].parent = parent
    ref = weakref.ref(children[3])
    del parent, children
    gc.disable()
    try:
        path = cycle(ref())
    finally:
        gc.enable()
    assert str(path) == "Node.parent -> Node.children -> list[3] -> Node"
    assert path is not None
    assert path.references[-1] == Reference("cycle", "Node", "Node")


def test_paths_below_a_cycle() -> None:
    node = Node()
    node.parent = node
    node.children.append(Thing())
    ref = weakref.ref(node.children[0])
    del node
    gc.disable()
    try:
        assert told(ref) == []
        text = "Node.parent -> Node"
        assert circle(ref) == text
    finally:
        gc.enable()


def test_no_cycle_of_what_is_held() -> None:
    node = Node()
    node.parent = node
    kept.append(node)
    ref = weakref.ref(node)
    del node
    assert circle(ref) == "None"
    assert told(ref) == [f"{HERE}.kept (global) -> list[0]"]


def test_a_holder_that_cannot_be_seen() -> None:
    def leave(thing: Any) -> None:
        pass

    thing = Thing()
    ref = weakref.ref(thing)
    atexit.register(leave, thing)
    try:
        del thing
        (path,) = found(ref)
        # from 3.14 on atexit has a list, with the last first
        is_list = sys.version_info >= (3, 14)
        inside = "list[0] -> tuple[1] -> tuple[0]" if is_list else "tuple[0]"
        assert str(path) == f"{OUTSIDE} -> {inside}"
        assert path.is_cut
        holder = "list" if is_list else "tuple"
        assert path.references[0] == Reference("unknown", OUTSIDE, holder)
    finally:
        atexit.unregister(leave)


def test_a_reference_that_cannot_be_seen() -> None:
    import ctypes

    thing = Thing()
    ref = weakref.ref(thing)
    kept.append(thing)
    del thing
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept[0]))
    try:
        texts = told(ref)
        assert texts == [f"{HERE}.kept (global) -> list[0]", OUTSIDE]
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(kept[0]))
    assert told(ref) == [f"{HERE}.kept (global) -> list[0]"]


def test_paths_without_the_native_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[reference_paths.__module__], "native", lambda: None)
    (path,) = found(add(kept))
    assert str(path) == "n/a: the native reader of the heap is missing"
    assert path.is_cut
    assert reference_paths([None]) == [[]]
    assert cycle(kept) is None


def test_a_variable_that_many_lists_hold() -> None:
    thing = Thing()
    lists = [[thing] for _ in range(300)]
    texts = told(weakref.ref(thing))
    name = "test_a_variable_that_many_lists_hold()"
    places = [f"{name}: lists (local) -> list[{place}] -> list[0]" for place in range(4)]
    assert texts == [f"{name}: thing (local)", *places]
    del lists


def test_tuples_in_tuples() -> None:
    inner: Any = Thing()
    ref = weakref.ref(inner)
    for _ in range(7):
        inner = (0, inner)
    kept.append(inner)
    del inner
    way = " -> ".join(["tuple[1]"] * 7)
    assert told(ref) == [f"{HERE}.kept (global) -> list[0] -> {way}"]


def test_paths_keep_nothing_alive() -> None:
    ref = add(kept)
    before = sys.getrefcount(kept[0])
    result = [found(ref), cycle(ref())]
    after = sys.getrefcount(kept[0])
    assert after == before
    kept.clear()
    assert ref() is None
    del result


def test_instances_do_not_grow() -> None:
    node = Node()
    kept.append(node)
    thing = Thing()
    node.parent = thing
    ref = weakref.ref(thing)
    del thing
    found(ref)
    before = len(gc.get_referents(node))
    found(ref)
    assert len(gc.get_referents(node)) == before


def _trap(name: str) -> Any:
    def trap(self: Any, *arguments: Any) -> Any:
        ran.append(name)
        raise RuntimeError(name)

    return trap


ran: list[str] = []


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


class OfMeta(metaclass=HostileMeta):
    pass


class HostileList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = __eq__ = _trap("list")  # type: ignore[assignment]


class HostileDict(dict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __len__ = __getitem__ = _trap("dict")  # type: ignore


class Key:
    def __hash__(self) -> int:
        return 1

    __repr__ = __eq__ = _trap("key")  # type: ignore[assignment]


class LazyModule(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        ran.append(f"module {name}")
        raise RuntimeError(name)


def test_no_code_of_the_objects_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = LazyModule("lazy")
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    variables = types.ModuleType.__dict__["__dict__"].__get__(lazy)
    ran.clear()
    thing, hostile, items, entries, of_meta = (
        Thing(),
        Hostile(),
        HostileList(),
        HostileDict(),
        OfMeta(),
    )
    ref = weakref.ref(thing)
    variables["first"] = of_meta
    object.__setattr__(of_meta, "second", items)
    list.append(items, entries)
    dict.__setitem__(entries, "k", {Key(): hostile})
    object.__setattr__(hostile, "third", thing)
    del thing, hostile, items, entries, of_meta, variables
    texts = told(ref)
    assert ran == []
    way = "HostileList[0] -> HostileDict['k'] -> dict[<Key>] -> Hostile.third (attribute)"
    assert texts == [f"lazy.first (global) -> OfMeta.second (attribute) -> {way}"]


def test_a_hostile_target() -> None:
    hostile = Hostile()
    ran.clear()
    (ways,) = reference_paths([hostile])
    assert [str(path) for path in ways] == ["test_a_hostile_target(): hostile (local)"]
    assert ran == []


def test_tuples_that_another_thread_makes() -> None:
    thing = Thing()
    done = threading.Event()
    failures: list[BaseException] = []

    def make() -> None:
        while not done.is_set():
            try:
                # longer than guessed: it is resized when it is finished
                tuple(thing for _ in range(300))
            except BaseException as error:
                failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(20):
            reference_paths([thing])
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert failures == []
