"""Generators and coroutines are charged for what they do, not for what others do meanwhile."""

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from bench import Bench, FakeMemory


def test_the_consumer_is_not_charged_to_the_generator(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def batches() -> Iterator[int]:
        for size in (10, 20):  # A
            memory.allocate(size)  # B
            yield size  # C
            memory.free(size)  # D

    for _ in batches():
        memory.spike(5000)
        memory.allocate(1)
    assert bench.hits("A", "B", "C", "D") == [3, 2, 2, 2]
    assert bench.nets("A", "B", "C", "D") == [0, 30, 0, -30]
    # 10; 10 + 1 consumed; 1 + 20; 21 + 1 consumed
    assert bench.peaks("A", "B", "C", "D") == [2, 21, 22, 22]
    assert bench.function("batches").calls == 1
    assert bench.is_idle()


def test_a_profiled_consumer_pays_for_the_generator_within_its_line(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def batches() -> Iterator[int]:
        memory.spike(900)  # A
        yield 1  # B

    @bench.profile
    def consume() -> None:
        for _ in batches():  # C
            memory.allocate(3)  # D

    consume()
    assert bench.peaks("A", "B", "C", "D") == [900, 3, 900, 3]
    assert bench.nets("A", "C", "D") == [0, 0, 3]
    assert bench.hits("A", "B", "C", "D") == [1, 1, 2, 1]
    assert bench.is_idle()


def test_interleaved_generators_keep_apart(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def growing(size: int) -> Iterator[None]:
        while True:
            memory.allocate(size)  # A
            yield  # B

    small, large = growing(1), growing(100)
    for _ in range(3):
        next(small), next(large)
    assert bench.hits("A", "B") == [6, 6]
    assert bench.at("A").net == 303
    assert bench.at("B").net == 0
    assert bench.function("growing").calls == 2
    small.close(), large.close()
    assert not bench.engine.busy


def test_values_errors_and_returns_pass_through(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def talk() -> Any:
        got = yield "first"  # A
        try:
            memory.allocate(10)
            got = yield got  # B
        except ValueError as error:
            memory.allocate(200)  # C
            got = yield str(error)  # D
        return ("end", got)  # E

    talking = talk()
    assert next(talking) == "first"
    assert talking.send("sent") == "sent"
    assert talking.throw(ValueError("thrown")) == "thrown"
    with pytest.raises(StopIteration) as end:
        talking.send("last")
    assert end.value.value == ("end", "last")
    assert bench.hits("A", "B", "C", "D", "E") == [1, 1, 1, 1, 1]
    assert bench.nets("B", "C") == [0, 200]
    assert bench.raised() == {}
    assert bench.is_idle()


def test_an_error_thrown_in_that_is_not_caught_is_marked(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def talk() -> Any:
        memory.allocate(1)  # A
        yield  # B

    talking = talk()
    next(talking)
    with pytest.raises(ValueError, match="thrown"):
        talking.throw(ValueError("thrown"))
    unstarted = talk()
    with pytest.raises(ValueError, match="early"):
        unstarted.throw(ValueError("early"))
    assert bench.raised() == {"B": "ValueError: thrown"}
    assert bench.hits("A", "B") == [1, 1]
    assert bench.is_idle()


def test_throwing_into_an_unstarted_generator_does_not_end_its_caller(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def walk(depth: int) -> Any:
        if depth:  # A
            try:
                walk(0).throw(ValueError("early"))
            except ValueError:
                memory.allocate(5)  # B
            memory.allocate(70)  # C
        yield depth  # D

    assert list(walk(1)) == [1]
    assert bench.hits("A", "B", "C", "D") == [1, 1, 1, 1]
    assert bench.nets("B", "C", "D") == [5, 70, 0]


def test_yield_from_is_one_hit_and_passes_all(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def inner() -> Any:
        try:
            while True:
                memory.allocate(10)  # I
                yield 1  # J
        except ValueError:
            memory.allocate(200)  # K
        return "done"  # L

    @bench.profile
    def outer() -> Any:
        result = yield from inner()  # A
        memory.allocate(3000)  # B
        yield result  # C

    running = outer()
    assert next(running) == 1
    memory.spike(50_000)
    assert next(running) == 1
    assert running.throw(ValueError) == "done"
    assert list(running) == []
    assert bench.hits("I", "J", "K", "L", "B", "C") == [2, 2, 1, 1, 1, 1]
    # from 3.12 on the line is reported again when a throw() ends what it delegates to
    assert bench.hits("A") == [1 if sys.version_info < (3, 12) else 2]
    assert bench.nets("I", "K", "B") == [20, 200, 3000]
    assert bench.peaks("I", "K", "L", "B", "C") == [20, 220, 220, 3220, 3220]
    assert bench.at("A").peak in (20, 220)  # who gets a throw() first differs between versions
    assert bench.raised() == {}
    assert bench.is_idle()


def test_close_runs_what_is_left(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def holding() -> Any:
        memory.allocate(10)  # A
        try:
            yield
        finally:
            memory.free(10)  # B

    held = holding()
    next(held)
    held.close()
    assert bench.nets("A", "B") == [10, -10]
    assert bench.is_idle()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="close() returns a value from 3.13 on")
def test_close_returns_what_the_generator_returns(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def holding() -> Any:
        try:
            yield
        except GeneratorExit:
            return 5

    held = holding()
    next(held)
    assert held.close() == 5
    assert bench.is_idle()


def test_a_generator_dropped_half_way_is_forgotten(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def holding() -> Any:
        memory.allocate(10)  # A
        yield 1
        memory.allocate(1000)  # B

    for _ in range(500):
        next(holding())
    never_started = holding()
    del never_started
    gc.collect()
    assert bench.hits("A", "B") == [500, 0]
    assert bench.function("holding").calls == 500
    # 3.13 ends such a generator without telling anyone
    assert len(getattr(bench.engine.tracer, "_suspended", ())) < 5


def test_a_generator_expression_is_part_of_the_line_that_runs_it(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step() -> None:
        sizes = (memory.allocate(size) for size in (1, 20))  # A
        list(sizes)  # B

    step()
    assert bench.nets("A", "B") == [0, 21]
    assert bench.hits("A", "B") == [1, 1]


def test_gathered_coroutines_are_not_charged_for_each_other(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    async def work(size: int) -> int:
        memory.allocate(size)  # A
        await asyncio.sleep(0)  # B
        memory.allocate(size)  # C
        return size  # D

    async def main() -> list[int]:
        return list(await asyncio.gather(*(work(size) for size in (1, 20, 300))))

    assert asyncio.run(main()) == [1, 20, 300]
    assert bench.hits("A", "B", "C", "D") == [3, 3, 3, 3]
    assert bench.nets("A", "B", "C", "D") == [321, 0, 321, 0]
    assert bench.at("A").net_max == bench.at("C").net_max == 300
    assert bench.at("A").net_first == bench.at("C").net_first == 1
    assert bench.function("work").calls == 3
    assert bench.is_idle()


def test_awaiting_a_profiled_coroutine_counts_in_the_awaiting_line(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    async def inner() -> None:
        memory.spike(700)  # A
        await asyncio.sleep(0)
        memory.allocate(5)  # B

    @bench.profile
    async def outer() -> None:
        await inner()  # C
        memory.allocate(1)  # D

    async def noise() -> None:
        memory.spike(90_000)

    async def main() -> None:
        await asyncio.gather(outer(), noise())

    asyncio.run(main())
    assert bench.peaks("A", "B", "C", "D") == [700, 5, 700, 6]
    assert bench.nets("B", "C", "D") == [5, 5, 1]
    assert bench.hits("A", "B", "C", "D") == [1, 1, 1, 1]
    assert bench.is_idle()


def test_a_cancelled_coroutine_is_marked(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    async def work() -> None:
        try:
            await asyncio.sleep(60)  # A
        finally:
            memory.allocate(1)  # B

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert bench.raised() == {"A": "CancelledError"}
    assert bench.nets("B") == [1]
    assert bench.is_idle()


def test_async_with_and_async_for(bench: Bench, memory: FakeMemory) -> None:
    class Holding:
        async def __aenter__(self) -> None:
            memory.allocate(10)
            await asyncio.sleep(0)

        async def __aexit__(self, *error: object) -> None:
            memory.free(10)

    @bench.profile
    async def numbers() -> AsyncIterator[int]:
        for number in range(2):
            memory.allocate(100)  # A
            await asyncio.sleep(0)  # B
            yield number  # C

    @bench.profile
    async def main() -> int:
        total = 0
        async with Holding():  # D
            async for number in numbers():  # E
                total += number  # F
                memory.allocate(1)  # G
        return total  # H

    assert asyncio.run(main()) == 1
    assert bench.hits("A", "B", "C", "D", "E", "F", "G", "H") == [2, 2, 2, 2, 3, 2, 2, 1]
    assert bench.nets("A", "B", "C", "D", "E", "F", "G") == [200, 0, 0, 0, 200, 0, 2]
    assert bench.function("numbers").calls == 1
    assert bench.is_idle()


def test_async_generators_take_what_is_sent_thrown_and_closed(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    async def talk() -> Any:
        got = yield "first"
        try:
            got = yield got
        except ValueError as error:
            memory.allocate(20)  # A
            got = yield str(error)
        try:
            yield got
        finally:
            await asyncio.sleep(0)
            memory.allocate(300)  # B

    async def main() -> list[Any]:
        talking = talk()
        said = [await talking.__anext__(), await talking.asend("sent")]
        said += [await talking.athrow(ValueError("thrown")), await talking.asend("again")]
        await talking.aclose()
        with pytest.raises(StopAsyncIteration):
            await talking.__anext__()
        return said

    assert asyncio.run(main()) == ["first", "sent", "thrown", "again"]
    assert bench.nets("A", "B") == [20, 300]
    assert bench.function("talk").calls == 1
    assert bench.raised() == {}
    assert bench.is_idle()


def test_kinds_of_functions_stay_what_they_are(bench: Bench) -> None:
    async def coroutine() -> None: ...

    async def async_generator() -> AsyncIterator[None]:
        yield

    def generator() -> Iterator[None]:
        yield

    assert inspect.iscoroutinefunction(bench.profile(coroutine))
    assert inspect.isasyncgenfunction(bench.profile(async_generator))
    assert inspect.isgeneratorfunction(bench.profile(generator))


def test_generators_run_in_another_thread_than_they_began(bench: Bench, memory: FakeMemory) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def numbers() -> Iterator[int]:
        memory.allocate(10)  # A
        yield 1
        memory.allocate(200)  # B
        yield 2

    numbers = bench.profile(numbers)
    running = numbers()
    with ThreadPoolExecutor(1) as pool:
        assert next(running) == 1
        assert pool.submit(next, running).result() == 2
        assert pool.submit(next, running, "over").result() == "over"
    assert bench.nets("A", "B") == [10, 200]
    assert bench.is_idle()
