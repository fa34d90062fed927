"""Counters are those of the process, so every thread's running line sees every peak."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bench import Bench, FakeMemory

from tensorlens.lines import ProfiledBlock, tracer


def in_turns(*steps: Callable[[], object]) -> None:
    """Run each step in a thread of its own; ``turn()`` inside hands over to the next thread."""
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_running_line_of_another_thread_has_the_peak_that_a_read_here_ended(
    bench: Bench, memory: FakeMemory
) -> None:
    waiting, spiked = threading.Event(), threading.Event()

    @bench.profile
    def waiter() -> None:
        waiting.set(), spiked.wait(60)  # A
        memory.allocate(1)  # B

    @bench.profile
    def spiker() -> None:
        memory.spike(800)  # C
        memory.allocate(20)  # D
        spiked.set()  # E

    def other() -> None:
        waiting.wait(60)
        spiker()

    in_turns(waiter, other)
    assert bench.peaks("A", "C", "D") == [800, 800, 20]
    assert bench.nets("A", "C", "D") == [20, 0, 20]
    assert bench.at("B").peak == 21
    assert bench.is_idle()


def test_a_peak_goes_to_the_innermost_line_and_from_there_to_its_callers(
    bench: Bench, memory: FakeMemory
) -> None:
    waiting, spiked = threading.Event(), threading.Event()

    @bench.profile
    def inner() -> None:
        waiting.set(), spiked.wait(60)  # A
        memory.free(0)  # B

    @bench.profile
    def outer() -> None:
        inner()  # C
        memory.free(0)  # D

    @bench.profile
    def spiker() -> None:
        memory.spike(300)  # E
        spiked.set()  # F

    def other() -> None:
        waiting.wait(60)
        spiker()

    in_turns(outer, other)
    assert bench.peaks("A", "B", "C", "D", "E") == [300, 0, 300, 0, 300]


def test_a_function_called_from_several_threads_at_once_loses_nothing(
    bench: Bench, memory: FakeMemory
) -> None:
    interval = sys.getswitchinterval()
    start = threading.Barrier(4)

    @bench.profile
    def step() -> int:
        total = 0
        for number in range(500):  # A
            total += number  # B
        return total  # C

    def work() -> None:
        start.wait(60)
        for _ in range(5):
            step()

    sys.setswitchinterval(1e-6)
    try:
        in_turns(work, work, work, work)
    finally:
        sys.setswitchinterval(interval)
    assert bench.hits("A", "B", "C") == [20 * 501, 20 * 500, 20]
    assert bench.function("step").calls == 20
    assert bench.is_idle()


def test_no_peak_is_lost_or_invented_between_threads(bench: Bench, memory: FakeMemory) -> None:
    interval = sys.getswitchinterval()
    start = threading.Barrier(3)
    ended = threading.Event()

    @bench.profile
    def spiker() -> None:
        memory.spike(1000)  # A
        memory.free(0)

    @bench.profile
    def idler() -> None:
        while not ended.is_set():
            len("")  # B

    def spike() -> None:
        start.wait(60)
        for _ in range(200):
            spiker()
        ended.set()

    def idle() -> None:
        start.wait(60)
        idler()

    sys.setswitchinterval(1e-6)
    try:
        in_turns(spike, idle, idle)
    finally:
        sys.setswitchinterval(interval)
    assert bench.at("A").peak == 1000
    assert bench.hits("A") == [200]


def test_threads_started_in_profiled_code_are_profiled(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def work(size: int) -> None:
        memory.allocate(size)  # A

    @bench.profile
    def step() -> None:
        for size in (10, 300):
            thread = threading.Thread(target=work, args=(size,))
            thread.start()  # B
            thread.join()  # C
        memory.allocate(5)  # D

    step()
    assert bench.hits("A", "D") == [2, 1]
    assert bench.nets("A", "D") == [310, 5]
    assert bench.function("work").calls == 2
    assert bench.is_idle()


def test_a_pool_goes_on_unmeasured_when_the_profiler_is_off(memory: FakeMemory) -> None:
    bench = Bench("around")

    def work(size: int) -> object:
        memory.allocate(size)  # A
        return sys.gettrace()

    profiler = bench.another_profiler(work)
    with ThreadPoolExecutor(1) as pool:
        with profiler:
            pool.submit(work, 10).result()
        pool.submit(work, 200).result()
        assert pool.submit(work, 3000).result() is None
        with profiler:
            work(1)
    (function,) = profiler.result().functions
    assert function.calls == 2
    assert threading.gettrace() is None
    bench.close()


def test_a_trace_function_for_new_threads_that_was_there_goes_on(
    bench: Bench, memory: FakeMemory
) -> None:
    seen = []

    def theirs(frame: object, event: str, arg: object) -> object:
        if getattr(frame, "f_code", None) is plain.__code__:
            seen.append((event, threading.current_thread().name))
        return theirs

    def plain() -> None:
        memory.allocate(20)

    def work() -> None:
        plain()  # A

    threading.settrace(theirs)
    try:
        work = bench.profile(work)
        thread = threading.Thread(target=work, name="new")
        thread.start()
        thread.join()
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    assert bench.nets("A") == [20]
    assert ("line", "new") in seen


def test_thread_local_generators_end_in_the_thread_that_drops_them(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def numbers() -> Iterator[int]:
        memory.allocate(1)  # A
        yield 1

    running = numbers()
    next(running)
    thread = threading.Thread(target=running.close)
    thread.start()
    thread.join()
    assert bench.hits("A") == [1]
    assert not bench.engine.busy


@pytest.mark.parametrize("ends_by", ["return", "error"])
def test_a_thread_that_ended_is_forgotten(bench: Bench, memory: FakeMemory, ends_by: str) -> None:
    @bench.profile
    def work() -> None:
        memory.allocate(1)
        if ends_by == "error":
            raise SystemExit

    def run() -> None:
        # pytest would report it as unhandled
        with contextlib.suppress(SystemExit):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not bench.engine.busy


def test_thread_that_began_in_a_profiled_call_is_followed_beyond_its_end(
    bench: Bench, memory: FakeMemory
) -> None:
    inside, over = threading.Event(), threading.Event()

    def part() -> None:
        pass

    @bench.profile
    def work() -> None:
        inside.set(), over.wait(60)  # A
        part()
        memory.allocate(5)  # B

    def twice() -> None:
        work(), work()

    @bench.profile
    def begin() -> None:
        threads.append(threading.Thread(target=twice))
        threads[0].start()
        inside.wait(60)

    bench.profiler.add_function(part)  # which nothing wraps: all lines come from the tracer
    threads: list[threading.Thread] = []
    begin()
    over.set()
    threads[0].join(60)
    assert bench.hits("A", "B") == [2, 2]
    assert bench.nets("B") == [10]
    assert bench.function("work").note is None
    assert not bench.engine.busy


def test_threads_that_begin_at_once_watch_a_function_once(
    memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench("around")

    def step() -> None:
        memory.allocate(8)

    bench.profiler.add_function(step)
    watch, watched, others = bench.engine.watch, [], []

    def watch_beside_another(*given: Any) -> None:
        watched.append(given)
        if len(watched) == 1:
            others.append(threading.Thread(target=bench.profiler.enable_by_count))
            others[0].start()
            others[0].join(0.2)
        watch(*given)

    monkeypatch.setattr(bench.engine, "watch", watch_beside_another)
    bench.profiler.enable_by_count()
    others[0].join()
    assert len(watched) == 1
    for _ in range(2):
        bench.profiler.disable_by_count()
    assert bench.engine.watched.all() == []
    bench.close()


def test_functions_may_change_during_a_report(bench: Bench) -> None:
    @bench.profile
    def step() -> None:
        pass

    class Changing(tuple[Any, ...]):
        def __iter__(self) -> Iterator[Any]:
            watched._accounts[1] = ()
            return super().__iter__()

    account = bench.profiler.functions[0].account
    watched = tracer.WatchedCode()
    watched._accounts[0] = Changing([account])
    watched._accounts[2] = (account,)
    assert watched.all() == [account, account]


@pytest.mark.parametrize("change", ["add", "remove"])
def test_functions_are_locked_during_a_change(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    engine = bench.engine
    real, taken = getattr(engine.watched, change), []

    def take() -> None:
        taken.append(engine.lock.acquire(blocking=False))
        if taken[-1]:
            engine.lock.release()

    def beside_another(*given: Any) -> Any:
        other = threading.Thread(target=take)
        other.start()
        other.join()
        return real(*given)

    monkeypatch.setattr(engine.watched, change, beside_another)
    block = ProfiledBlock(engine, sys._getframe())
    block.close(sys._getframe(), None)
    assert taken == [False]
