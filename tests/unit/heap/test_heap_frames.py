"""Where names begin: locals of running frames, in all threads, without keeping them."""

import gc
import sys
import threading
import weakref
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from tensorlens.heap import anchors, find_holders, frames
from tensorlens.records import Names

pytestmark = pytest.mark.skipif(bool(frames.why_no_locals()), reason="frames cannot be read here")


class Thing:
    def method(self) -> dict[int, str]:
        return anchors()


def name(thing: Any) -> str | None:
    names = Names()
    (node,) = find_holders(gc.get_objects(), array("Q", [id(thing)]), anchors(), names)
    return None if node < 0 else names[node]


def test_a_local_of_the_caller() -> None:
    def train() -> None:
        inputs = Thing()
        assert anchors()[id(inputs)] == "test_a_local_of_the_caller.train(): inputs"

    train()


def test_self_of_a_method_has_its_name_outside() -> None:
    thing = Thing()
    begin = thing.method()
    assert begin[id(thing)] == "test_self_of_a_method_has_its_name_outside(): thing"


def test_methods_carry_their_class() -> None:
    begin = Thing().method()
    assert "Thing.method(): self" in begin.values()


def test_a_list_of_the_caller() -> None:
    history = [Thing() for _ in range(5)]
    names = Names()
    (node,) = find_holders(gc.get_objects(), array("Q", [id(history[3])]), anchors(), names)
    assert names[node] == "test_a_list_of_the_caller(): history[3]"


def test_variables_in_cells() -> None:
    thing, other = Thing(), Thing()

    def inner() -> dict[int, str]:
        return {**anchors(), 0: str(id(thing))}

    begin = inner()
    # the name of the function that made it
    assert begin[id(thing)] == "test_variables_in_cells(): thing"
    assert begin[id(other)] == "test_variables_in_cells(): other"


def test_recursion_names_the_innermost() -> None:
    def descend(depth: int, kept: Any) -> dict[int, str]:
        mine = Thing()
        things.append(mine)
        return descend(depth - 1, kept) if depth else anchors()

    things: list[Any] = []
    begin = descend(3, Thing())
    assert {begin[id(one)] for one in things} == {
        "test_recursion_names_the_innermost.descend(): mine"
    }


def test_a_running_generator() -> None:
    def gen() -> Iterator[Any]:
        local = Thing()
        yield anchors()[id(local)]

    assert [*gen()] == ["test_a_running_generator.gen(): local"]


def test_variables_of_other_threads() -> None:
    ready, done = threading.Event(), threading.Event()
    places: list[int] = []

    def work() -> None:
        local = [Thing()]
        places.append(id(local))
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    try:
        assert anchors()[places[0]] == "test_variables_of_other_threads.work(): local"
    finally:
        done.set()
        thread.join()


LIBRARY = """
def call(value, then):
    return then()
"""
FOLDERS = ("/opt/packages/site-packages", "/usr/lib/python3/dist-packages")


@pytest.mark.parametrize("folder", FOLDERS)
def test_variables_of_the_user_come_before_those_of_a_library(folder: str) -> None:
    library: dict[str, Any] = {"__name__": "library"}
    exec(compile(LIBRARY, f"{folder}/library.py", "exec"), library)
    loss, passed = Thing(), [Thing()]
    begin = library["call"](loss, anchors)
    assert begin[id(loss)].endswith("_come_before_those_of_a_library(): loss")
    begin = library["call"](passed[0], anchors)
    assert begin[id(passed[0])] == "call(): value"


def test_cell_of_a_global_of_main_is_no_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "loss", Thing(), raising=False)

    def call(self: Thing, other: Thing) -> tuple[dict[int, str], Any]:
        def inner() -> list[Thing]:
            return [self, other]

        return anchors(), inner

    begin, _ = call(vars(sys.modules["__main__"])["loss"], Thing())
    assert not any(text.endswith("call(): self") for text in begin.values())
    assert any(text.endswith("call(): other") for text in begin.values())


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_global_of_the_program_comes_before_a_variable_of_a_library(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: dict[str, Any] = {"__name__": "library"}
    exec(compile(LIBRARY, f"{folder}/library.py", "exec"), library)
    monkeypatch.setattr(sys.modules["__main__"], "loss", Thing(), raising=False)
    thing = vars(sys.modules["__main__"])["loss"]
    place = array("Q", [id(thing)])
    del thing

    def found() -> str:
        names = Names()
        (node,) = find_holders(gc.get_objects(), place, anchors(), names)
        return names[node]

    name_of_it = library["call"](vars(sys.modules["__main__"])["loss"], found)
    assert name_of_it == "loss"


def test_own_frames_and_modules_are_left_out() -> None:
    texts = anchors(("gc",)).values()
    assert "gc" not in texts
    assert "" in texts
    assert not [text for text in texts if text.startswith(("tensorlens", "anchors("))]


def test_a_local_dies_when_it_is_deleted() -> None:
    def train() -> None:
        x = Thing()
        gone = weakref.ref(x)
        before = sys.getrefcount(x)
        name(x)
        anchors()
        assert sys.getrefcount(x) == before
        del x
        assert gone() is None

    gc.disable()
    try:
        train()
    finally:
        gc.enable()


def test_changing_a_local_afterwards_holds() -> None:
    value = Thing()
    anchors()
    value = None  # type: ignore[assignment]
    anchors()
    assert value is None


def test_no_frame_is_kept() -> None:
    gc.collect()
    gc.disable()
    try:
        anchors()
        before = len(gc.get_objects())
        for _ in range(20):
            anchors()
        assert len(gc.get_objects()) < before + 15
    finally:
        gc.enable()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the stack is not read")
def test_temporary_has_its_line() -> None:
    held = [Thing(), anchors()]
    assert held[1][id(held[0])] == "test_temporary_has_its_line(): (temporary)"
