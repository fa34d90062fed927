"""The profiled program does the same, holds the same, and for as long."""

import contextlib
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bench import Bench, FakeMemory


class Thing:
    """Something that weak references can watch."""


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
def test_an_argument_the_function_drops_is_freed_at_once(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(first: Any, *, named: Any) -> list[bool]:
        refs = [weakref.ref(first), weakref.ref(named)]
        first = None
        named = None
        return [ref() is None for ref in refs]

    freed = step(Thing(), named=Thing())  # an assert would hold them until it is done
    assert freed == [True, True]


@pytest.mark.usefixtures("no_gc")
def test_an_argument_of_a_method_and_a_generator_is_freed_at_once(
    bench: Bench, memory: FakeMemory
) -> None:
    class Net:
        @bench.profile
        def step(self, thing: Any) -> bool:
            ref = weakref.ref(thing)
            del thing
            return ref() is None

        @bench.profile
        def steps(self, thing: Any) -> Iterator[bool]:
            ref = weakref.ref(thing)
            yield ref() is None
            del thing
            yield ref() is None

    freed = [Net().step(Thing()), *Net().steps(Thing())]
    assert freed == [True, False, True]


@pytest.mark.usefixtures("no_gc")
def test_locals_are_freed_when_the_call_ends(bench: Bench, memory: FakeMemory) -> None:
    refs = []

    @bench.profile
    def step(fails: bool) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        if fails:
            raise ValueError

    step(False)
    with contextlib.suppress(ValueError):
        step(True)
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.usefixtures("no_gc")
def test_yielded_and_sent_items_are_not_kept(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def items() -> Any:
        while True:
            got = yield Thing()
            if got is not None:
                ref = weakref.ref(got)
                del got
                yield ref

    running = items()
    item = next(running)
    ref = weakref.ref(item)
    del item
    assert ref() is None
    sent = Thing()
    kept = running.send(sent)
    assert kept() is sent
    del sent
    assert kept() is None


@pytest.mark.usefixtures("no_gc")
def test_items_of_async_generators_are_not_kept(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    async def items() -> Any:
        while True:
            yield Thing()

    def run(awaitable: Any) -> Any:
        try:
            awaitable.__await__().send(None)
        except StopIteration as end:
            return end.value

    running = items()
    item = run(running.__anext__())
    ref = weakref.ref(item)
    del item
    assert ref() is None


def test_reference_counts_are_as_before(bench: Bench, memory: FakeMemory) -> None:
    inside = []

    def step(thing: Any, other: Any = None) -> Any:
        inside.append(sys.getrefcount(thing))
        return thing

    thing = Thing()
    step(thing, other=thing)
    before = sys.getrefcount(thing)
    measured = bench.profile(step)
    for _ in range(10):
        measured(thing, other=thing)
    assert sys.getrefcount(thing) == before
    # from 3.14 on a caller lends its variables, which a wrapper cannot
    assert set(inside[sys.version_info >= (3, 14) :]) == {inside[-1]}


@pytest.mark.usefixtures("no_gc")
def test_calls_leave_nothing_for_the_garbage_collector(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def numbers() -> Iterator[int]:
        yield 1

    @bench.profile
    def inner(fails: bool) -> int:
        if fails:
            raise ValueError("no")
        return sum(numbers())

    @bench.profile
    def step() -> None:
        inner(False)
        try:
            inner(True)
        except ValueError:
            pass

    def run(times: int) -> int:
        for _ in range(times):
            step()
        return len(gc.get_objects())

    run(10)
    before = run(10)
    # other threads of the process have a few of their own
    assert abs(run(1_000) - before) < 50


def test_locals_and_frame_look_the_same(bench: Bench, memory: FakeMemory) -> None:
    def step(a: int, *rest: int, b: int = 2, **others: int) -> Any:
        total = a + b
        names = list(locals().items())
        frame = inspect.currentframe()
        assert frame is not None
        where = (frame.f_lineno, frame.f_code.co_name, frame.f_code.co_varnames, frame.f_globals)
        return total, names, where, sorted(inspect.getargvalues(frame).locals)

    assert bench.profile(step)(1, 5, c=6) == step(1, 5, c=6)


def test_the_recursion_limit_and_tracing_are_left_alone(bench: Bench, memory: FakeMemory) -> None:
    limit = sys.getrecursionlimit()
    before = sys.gettrace(), sys.getprofile()

    @bench.profile
    def step() -> None:
        memory.allocate(1)

    step()
    assert sys.getrecursionlimit() == limit
    if bench.way == "decorated":
        assert (sys.gettrace(), sys.getprofile()) == before


def test_results_are_the_very_objects(bench: Bench, memory: FakeMemory) -> None:
    thing = Thing()

    @bench.profile
    def step(item: Any) -> Any:
        return item

    assert step(thing) is thing


def test_an_error_is_the_very_object_with_its_cause(bench: Bench, memory: FakeMemory) -> None:
    error, cause = ValueError("no"), KeyError("why")

    @bench.profile
    def step() -> None:
        raise error from cause

    with pytest.raises(ValueError, match="no") as caught:
        step()
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__context__ is None


@pytest.mark.usefixtures("no_gc")
def test_an_error_that_passed_is_freed_when_its_handler_ends(
    bench: Bench, memory: FakeMemory
) -> None:
    refs = []

    class Failure(Exception):
        pass

    @bench.profile
    def step() -> None:
        error = Failure()
        refs.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    def call(function: Callable[[], None]) -> None:
        with contextlib.suppress(Failure):
            function()

    call(step)
    assert [ref() for ref in refs] == [None]
