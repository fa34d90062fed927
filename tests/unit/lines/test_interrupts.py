"""Ctrl-C at any instant of a profiled call, caught by the program: what follows is measured."""

import gc
import random
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from bench import Bench, FakeMemory

INTERRUPTS = 150


@pytest.fixture(autouse=True)
def no_finalizers() -> Iterator[None]:
    """What a signal's handler raises within a finalizer is lost: that is Python's way."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    # what an interrupt left installed goes at the next call, which may not come in this test
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("alarm")
def test_calls_after_interrupts_are_measured_right(bench: Bench, memory: FakeMemory) -> None:
    if sys.version_info < (3, 12) and bench.way == "around":
        pytest.skip("CPython removes a trace function that is interrupted; the note says so")

    @bench.profile
    def step() -> None:
        memory.allocate(30)  # A
        memory.free(10)  # B

    @bench.profile
    def batches() -> Iterator[int]:
        for number in range(3):
            memory.allocate(2)  # C
            yield number

    @bench.profile
    def down(level: int) -> int:
        return down(level - 1) if level else 0

    choose = random.Random(0)
    for _ in range(INTERRUPTS):
        try:
            signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-4, 1e-3))
            while True:
                step()
                list(batches())
                down(60)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)

    bench.profiler.clear()
    step()
    step()
    assert len(list(batches())) == 3
    assert bench.nets("A", "B", "C") == [60, -20, 6]
    assert bench.hits("A", "B", "C") == [2, 2, 3]


class TimeIsUp(Exception):
    pass


def test_an_exception_of_a_signal_handler_reaches_the_program(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)

    def give_up(number: int, frame: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, give_up)
    caught = 0
    try:
        for _ in range(INTERRUPTS):
            try:
                signal.setitimer(signal.ITIMER_REAL, 3e-4)
                for _ in range(1_000_000):
                    step()
            except TimeIsUp:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # a swallowed one would have let the loop go on to its end
    assert caught == INTERRUPTS
