"""By what way an object is held: every kind of holder."""

import collections
import functools
import gc
import sys
import threading
import types
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensorlens.heap import anchors, find_holders, holders, native, why_no_names
from tensorlens.records import Names, key_text


class Thing:
    __slots__ = ("__weakref__", "next")


class Node:
    pass


class Slotted:
    __slots__ = ("first", "second")


class Config:
    cache: Any = None


@pytest.fixture(autouse=True)
def _native() -> None:
    if native.native() is None:
        pytest.skip("no compiler")


def name_all(
    things: list[Any], begin: dict[int, str] | None = None, without: tuple[Any, ...] = ()
) -> list[str | None]:
    names = Names()
    targets = array("Q", map(id, things))
    begin = anchors() if begin is None else begin
    left_out = {id(things), *map(id, without)}
    objects = [each for each in gc.get_objects() if id(each) not in left_out]
    nodes = find_holders(objects, targets, begin, names)
    return [None if node < 0 else names[node] for node in nodes]


def name(root: Any, thing: Any, text: str = "main(): root") -> str | None:
    """Name ``thing``, where names begin at ``root`` only."""
    return name_all([thing], {id(root): text})[0]


def attribute(thing: Any) -> Any:
    root = Node()
    root.best = thing
    return root


def materialised(thing: Any) -> Any:
    root = attribute(thing)
    vars(root)["other"] = 1
    return root


def slotted(thing: Any) -> Any:
    root = Slotted()
    root.second = thing
    return root


def default(thing: Any) -> Any:
    return collections.defaultdict(list, k=thing)


def exception(thing: Any) -> Any:
    return ValueError("no", thing)


def bound(thing: Any) -> Any:
    return types.MethodType(print, thing)


def module_like(thing: Any) -> Any:
    root, inner = Node(), Node()
    root._modules, inner._parameters = {"fc": inner}, {"weight": thing}
    return root


def tuple_with_attribute(thing: Any) -> Any:
    class Pair(tuple):  # type: ignore[type-arg]
        pass

    root = Pair((1, 2))
    root.extra = thing
    return root


def list_with_attribute(thing: Any) -> Any:
    class Items(list):  # type: ignore[type-arg]
        pass

    root = Items([1, 2])
    root.extra = thing
    return root


def ordered(thing: Any) -> Any:
    return collections.OrderedDict(a=1, b=thing)


def fully_shard() -> None:
    """A function that is a key, as in the state of FSDP2."""


def test_names_are_those_of_another_run_of_the_program() -> None:
    root, thing = Node(), Thing()
    vars(root)["state_e52164fc-f828-48c8-878b-54107adfafbd"] = {fully_shard: thing}
    assert name(root, thing) == "main(): root.state[<fully_shard>]"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda thing: [0, thing], "[1]"),
        (lambda thing: (0, [thing]), "[1][0]"),
        (lambda thing: {"k": thing}, "['k']"),
        (lambda thing: {7: thing}, "[7]"),
        (lambda thing: {(1, "a"): [thing]}, "[(1, 'a')][0]"),
        (lambda thing: {thing: 1}, "{key}"),
        (lambda thing: [{"loss": [[thing]]}], "[0]['loss'][0][0]"),
        (attribute, ".best"),
        (materialised, ".best"),
        (slotted, ".second"),
        (default, "['k']"),
        (ordered, "['b']"),
        (lambda thing: collections.deque([0, 0, thing]), "[2]"),
        (lambda thing: {thing}, "{…}"),
        (lambda thing: frozenset([thing]), "{…}"),
        (lambda thing: functools.partial(print, 1, thing), ".args[1]"),
        (lambda thing: functools.partial(print, end=thing), ".keywords['end']"),
        (bound, ".__self__"),
        (exception, ".args[1]"),
        (lambda thing: types.CellType(thing), ".cell_contents"),
        (lambda thing: types.SimpleNamespace(a=thing), ".a"),
        (module_like, ".fc.weight"),
        (tuple_with_attribute, ".extra"),
        (list_with_attribute, ".extra"),
        (lambda thing: threading.Thread(args=(thing,)), "._args[0]"),
    ],
)
def test_how_it_is_held(make: Callable[[Any], Any], expected: str) -> None:
    thing = Thing()
    root = make(thing)
    assert name(root, thing) == "main(): root" + expected


def test_without_the_native_reader_nothing_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "native", lambda: None)
    root = [thing := Thing()]
    assert name(root, thing) is None
    assert why_no_names() == (
        "the native reader of the heap is missing, so nothing is named after variables"
    )


def test_chain_of_instances() -> None:
    root, inner, thing = Node(), Node(), Thing()
    root.next, inner.value = inner, thing
    assert name(root, thing) == "main(): root.next.value"


def test_closure_defaults_and_function_attributes() -> None:
    things = [Thing() for _ in range(4)]

    def outer(kept: Any, second: Any, third: Any) -> Any:
        def f(a: Any = second, *, b: Any = third) -> Any:
            return kept

        return f

    f = outer(*things[:3])
    f.note = things[3]
    here = f"{__name__}.{f.__qualname__}"
    assert name_all(things, {}) == [
        f"closure of {f.__qualname__}: kept",
        f"{here}.__defaults__[0]",
        f"{here}.__kwdefaults__['b']",
        f"{here}.note",
    ]


def test_held_by_class_attribute() -> None:
    thing = Thing()
    Config.cache = {"a": thing}
    try:
        assert name_all([thing], {}) == [f"{__name__}.Config.cache['a']"]
    finally:
        Config.cache = None


def test_module_globals_and_the_better_name() -> None:
    main, other = sys.modules["__main__"], types.ModuleType("heap_test_other")
    sys.modules[other.__name__] = other
    both, only = Thing(), Thing()
    main.heap_test_thing = other.thing = both  # type: ignore[attr-defined]
    other.only = [only]  # type: ignore[attr-defined]
    things = [both, only]
    begin = {place: text for place, text in anchors().items() if "(" not in text}
    del both, only
    try:
        assert name_all(things, begin) == ["heap_test_thing", "heap_test_other.only[0]"]
    finally:
        del main.heap_test_thing, sys.modules[other.__name__]  # type: ignore[attr-defined]


def test_module_outside_of_sys_modules() -> None:
    module, thing = types.ModuleType("apart"), Thing()
    module.state = [thing]  # type: ignore[attr-defined]
    assert name_all([thing], {}) == ["apart.state[0]"]


def test_held_by_suspended_generator() -> None:
    def gen(x: Any) -> Iterator[Any]:
        cell = [x]
        yield lambda: cell

    suspended = gen(Thing())
    next(suspended)
    things = [found for found in gc.get_referents(suspended) if type(found) is Thing]
    assert name_all(things, {}) == ["test_held_by_suspended_generator.gen(): x"]


def test_held_by_suspended_coroutine() -> None:
    thing = Thing()

    async def work(given: Any) -> None:
        await forever()

    @types.coroutine
    def forever() -> Iterator[None]:
        yield

    task = work([thing])
    task.send(None)
    assert name_all([thing], {}) == ["test_held_by_suspended_coroutine.work(): given[0]"]
    task.close()


def test_frame_kept_by_a_traceback() -> None:
    def fails(value: Any) -> None:
        held = [value]
        raise ValueError(len(held))

    thing = Thing()
    try:
        fails(thing)
    except ValueError as caught:
        error = caught
    things = [thing]
    found = name_all(things, {})[0]
    assert found == "test_frame_kept_by_a_traceback.fails(): value (kept by a traceback)"
    error.__traceback__ = None


def test_unheld_object_has_no_name() -> None:
    assert name_all([Thing()], {}) == [None]


def test_unanchored_is_named_by_its_outermost_holder() -> None:
    top, inner, thing = Node(), Node(), Thing()
    top.next, inner.value = inner, thing
    assert name_all([thing], {}) == ["Node.next.value"]


def test_unanchored_by_a_list() -> None:
    thing = Thing()
    listed = [[thing]]
    assert name_all([thing], {}) == ["<list>[0][0]"]
    assert listed


def test_cycle_of_garbage() -> None:
    gc.disable()
    try:
        one, other, thing = Node(), Node(), Thing()
        one.next, other.next, one.value = other, one, thing
        del one, other
        assert name_all([thing], {}) == ["unreachable cycle: Node.value"]
    finally:
        gc.enable()


def test_depth_ends_the_search() -> None:
    thing = Thing()
    root = [[[[[[[[thing]]]]]]]]
    assert name_all([thing], {id(root): "main(): root"}) == [f"main(): root{'[0]' * 8}"]
    deeper = [root]
    assert name_all([thing], {id(deeper): "main(): root"}) == [f"<list>{'[0]' * 8}"]


def test_fewest_steps_win_then_where_it_begins() -> None:
    thing, near = Thing(), [0]
    far, local, listed = [near], [thing], [thing]
    near.append(thing)  # type: ignore[arg-type]
    begin = {id(far): "f(): far", id(local): "pkg.Class", id(listed): "f(): local"}
    assert name_all([thing], begin) == ["f(): local[0]"]


def test_of_ways_that_are_equally_long_a_global_comes_before_a_variable() -> None:
    thing, other = Thing(), Thing()
    space = {"thing": thing, "other": [other]}
    variable, list_in_variable = [thing], [[other]]
    begin = {
        id(space): "",
        id(variable): "f(): variable",
        id(list_in_variable): "f(): lists",
    }
    assert name_all([thing, other], begin) == ["thing", "other[0]"]
    assert name_all([thing, other], {id(space): ""}, (variable, list_in_variable)) == [
        "thing",
        "other[0]",
    ]


class Holder:
    pass


@pytest.mark.parametrize("materialised", [False, True])
def test_attributes_are_seen_in_a_dict_and_beside_an_instance(materialised: bool) -> None:
    things = [Thing() for _ in range(4)]
    holder, bare = Holder(), Holder()
    holder.held, holder.list = things[0], [things[1]]  # type: ignore[attr-defined]
    if materialised:
        vars(holder)["more"] = things[3]
    kept = [holder, things[2], bare]
    wanted = [*things[: 3 + materialised], holder, bare]
    plain = name_all(wanted, {id(kept): "f(): kept"}, (things,))
    assert plain == [
        *("f(): kept[0].held", "f(): kept[0].list[0]", "f(): kept[1]"),
        *["f(): kept[0].more"][: int(materialised)],
        *("f(): kept[0]", "f(): kept[2]"),
    ]


def test_dicts_of_all_sorts() -> None:
    large = {f"key {index}": Thing() for index in range(3000)}
    numbers: dict[Any, Thing] = {index: Thing() for index in range(300)}
    mixed: dict[Any, Thing] = {"text": Thing(), 2: Thing(), (3, "four"): Thing(), None: Thing()}
    one = {"one": Thing()}
    for index in range(0, 3000, 3):
        del large[f"key {index}"]
    for index in range(0, 300, 2):
        del numbers[index]
    del mixed[2]
    kept = [large, numbers, mixed, one, {}]
    things = [thing for each in kept for thing in each.values()]
    expected = [f"f(): kept[{i}][{key!r}]" for i, each in enumerate(kept) for key in each]
    assert name_all(things, {id(kept): "f(): kept"}) == expected


def test_keys_that_are_objects_sought() -> None:
    thing = Thing()
    kept = [{thing: 1, "text": []}]
    assert name_all([thing], {id(kept): "f(): kept"}, ([thing],)) == ["f(): kept[0]{key}"]


def test_keys_that_are_short_and_long_texts() -> None:
    keys = ["a" * 60, "a" * 61, "it's", "\n", "\ud800", "é" * 60]
    kept = {key: Thing() for key in keys}
    found = name_all([*kept.values()], {id(kept): "f(): kept"})
    assert found == [f"f(): kept[{key_text(key)}]" for key in keys]
    del kept["a" * 61]
    found = name_all([*kept.values()], {id(kept): "f(): kept"})
    assert found == [f"f(): kept[{key_text(key)}]" for key in kept]


def test_target_is_an_anchor() -> None:
    thing = Thing()
    assert name_all([thing], {id(thing): "main(): inputs"}) == ["main(): inputs"]


def test_temporary_only_where_nothing_else_names_it() -> None:
    lone, named = things = [Thing(), Thing()]
    root = [named]
    begin = {id(one): "f(): (temporary)" for one in things} | {id(root): "f(): root"}
    assert name_all(things, begin) == ["f(): (temporary)", "f(): root[0]"]
    assert lone


def test_holders_that_are_not_listed_do_not_count() -> None:
    thing = Thing()
    ours = [thing]
    assert name_all([thing], {id(ours): "f(): ours"}, without=(ours,)) == [None]


def test_a_hundred_thousand_of_one_list() -> None:
    count = 100_000
    history = [Thing() for _ in range(count)]
    names = Names()
    targets = array("Q", map(id, history))
    nodes = find_holders(gc.get_objects(), targets, {id(history): "main(): history"}, names)
    assert len(names) == count + 1
    assert names[nodes[3]] == "main(): history[3]"
    assert names.family(nodes[-1]) == (names.family(nodes[0])[0], count - 1)  # type: ignore[index]


def test_many_holders_of_each_kind() -> None:
    things = [Thing() for _ in range(300)]
    nodes = [Node() for _ in things]
    for node, thing in zip(nodes, things, strict=True):
        node.value = thing
    slots = [Slotted() for _ in things]
    more = [Thing() for _ in slots]
    for holder, thing in zip(slots, more, strict=True):
        holder.first = thing
    keyed = {f"k{index}": Thing() for index in range(300)}
    begin = {id(nodes): "f(): nodes", id(slots): "f(): slots", id(keyed): "f(): keyed"}
    found = name_all([*things, *more, *keyed.values()], begin, without=(things, more))
    assert found == [
        *(f"f(): nodes[{index}].value" for index in range(300)),
        *(f"f(): slots[{index}].first" for index in range(300)),
        *(f"f(): keyed['k{index}']" for index in range(300)),
    ]


def test_names_are_added_after_those_there() -> None:
    names, thing = Names(), Thing()
    before = names.index(names.text("x"), 1)
    root = [thing]
    (node,) = find_holders(
        gc.get_objects(), array("Q", [id(thing)]), {id(root): "f(): root"}, names
    )
    assert names[before] == "x[1]"
    assert names[node] == "f(): root[0]"


def test_holders_change_no_reference_count() -> None:
    thing, root = Thing(), Node()
    root.best, listed = thing, [thing]
    kept = [thing, root, listed]
    counts = [sys.getrefcount(one) for one in kept]
    name_all([thing])
    name_all([thing], {id(root): "f(): root"})
    gc.collect()
    assert [sys.getrefcount(one) for one in kept] == counts
    gone = weakref.ref(thing)
    del thing
    kept.clear()
    listed.clear()
    del root.best
    assert gone() is None


def test_instances_get_no_dict() -> None:
    thing = Thing()
    roots = [attribute(thing) for _ in range(50)]
    before = [sys.getsizeof(root) for root in roots]
    counts = len(gc.get_objects())
    assert name(roots[0], thing) == "main(): root.best"
    assert [sys.getsizeof(root) for root in roots] == before
    assert len(gc.get_objects()) < counts + 40
