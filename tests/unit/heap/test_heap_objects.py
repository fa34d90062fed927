"""A look at the heap while other threads make tuples: nobody may hold one that is half made."""

import gc
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator

import pytest

from tensorlens.heap import native, without_tuples


def natively() -> None:
    engine = native.native()
    if engine is None:
        pytest.skip("no compiler")
    engine.objects()


@pytest.fixture
def quick_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    # the shorter the look the more of them, and the tuples of others are of no use here
    gc.freeze()
    yield
    gc.unfreeze()
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("look", "times"), [(without_tuples, 1500), (natively, 3000)])
def test_tuples_are_made_meanwhile(
    look: Callable[[], object], times: int, quick_turns: None
) -> None:
    failures: list[BaseException] = []
    made = [0, 0, 0]
    is_over = threading.Event()

    def make(place: int) -> None:
        while not is_over.is_set():
            try:
                assert len(tuple(number for number in range(1000))) == 1000
            except BaseException as error:
                failures.append(error)
                return
            made[place] += 1

    makers = [threading.Thread(target=make, args=(place,)) for place in range(3)]
    for maker in makers:
        maker.start()
    try:
        looks = 0
        while not failures and (looks < times or min(made) < 10):
            look()
            looks += 1
    finally:
        is_over.set()
        for maker in makers:
            maker.join()
    assert failures == []


def test_contents_of_an_object() -> None:
    class Thing:
        pass

    thing, plain, named = Thing(), ([],), namedtuple("Pair", "one two")([], [])
    found = without_tuples()
    addresses = set(map(id, found))
    assert {id(thing), id(plain[0]), id(named)} <= addresses
    assert id(plain) not in addresses
    assert tuple not in set(map(type, found))
    assert id(found) not in addresses


def test_object_table_holds_nothing() -> None:
    class Thing:
        pass

    thing = Thing()
    before = sys.getrefcount(thing)
    gc.disable()
    try:
        found = without_tuples()
        del found
        # a list that holds itself would keep all of it until the next collection
        assert sys.getrefcount(thing) == before
    finally:
        gc.enable()
