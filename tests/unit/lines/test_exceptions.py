"""The line an exception left is marked, in every frame it passed; a line that caught it is not."""

import contextlib
import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bench import Bench, FakeMemory


def test_every_frame_it_passes_is_marked(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def inner() -> None:
        memory.allocate(10)
        raise ValueError("no more\nthan this")  # I

    @bench.profile
    def middle() -> None:
        inner()  # M
        memory.allocate(1)

    @bench.profile
    def outer() -> None:
        middle()  # O

    with pytest.raises(ValueError, match="no more"):
        outer()
    text = "ValueError: no more"
    assert bench.raised() == {"I": text, "M": text, "O": text}
    assert bench.nets("M", "O") == [10, 10]
    assert bench.hits("I", "M", "O") == [1, 1, 1]
    assert bench.is_idle()


def test_a_line_whose_exception_was_caught_inside_is_not_marked(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def inner() -> None:
        raise ValueError("no")  # I

    @bench.profile
    def outer() -> None:
        try:
            inner()  # A
        except ValueError:
            memory.allocate(1)  # B
        with contextlib.suppress(ValueError):  # C
            inner()  # D
        return None  # E

    outer()
    assert bench.raised() == {"I": "ValueError: no"}
    assert bench.hits("A", "B", "D", "E") == [1, 1, 1, 1]


def test_an_except_that_does_not_fit_does_not_hide_it(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        try:
            raise ValueError("no")  # A
        except KeyError:  # B
            memory.allocate(1)

    with pytest.raises(ValueError, match="no"):
        step()
    assert bench.raised() == {"A": "ValueError: no"}


def test_the_line_that_raised_is_marked_and_not_the_finally(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step() -> None:
        try:
            memory.allocate(5)
            raise MemoryError("out of memory")  # A
        finally:
            memory.free(5)  # B
            memory.spike(2)  # C

    with pytest.raises(MemoryError):
        step()
    assert bench.raised() == {"A": "MemoryError: out of memory"}
    assert bench.hits("A", "B", "C") == [1, 1, 1]
    assert bench.nets("B", "C") == [-5, 0]


def test_a_with_block_it_passes_does_not_hide_it(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        with contextlib.nullcontext():  # A
            raise ValueError("no")  # B

    with pytest.raises(ValueError, match="no"):
        step()
    assert bench.raised() == {"B": "ValueError: no"}


def test_an_exception_raised_again_and_one_raised_instead(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def again() -> None:
        try:
            raise ValueError("first")  # A
        except ValueError:
            memory.allocate(1)
            raise  # B

    @bench.profile
    def instead() -> None:
        try:
            raise ValueError("first")  # C
        except ValueError as error:
            raise KeyError("second") from error  # D

    with pytest.raises(ValueError, match="first"):
        again()
    with pytest.raises(KeyError):
        instead()
    assert bench.raised() == {"A": "ValueError: first", "D": "KeyError: 'second'"}


def test_the_end_of_an_iteration_is_no_failure(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def numbers() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            memory.allocate(1)  # A

    @bench.profile
    def consume() -> int:
        taken = numbers()
        total = sum(numbers())
        next(taken)
        taken.close()
        return total

    assert consume() == 3
    assert bench.raised() == {}
    assert bench.hits("A") == [2]
    assert bench.is_idle()


def test_system_exit_and_keyboard_interrupt_are_marked_and_pass(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step(error: BaseException) -> None:
        raise error  # A

    for error in (SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            step(error)
        assert caught.value is error
    assert bench.raised() == {"A": "KeyboardInterrupt"}
    assert bench.is_idle()


def test_an_exception_whose_text_fails_is_named(bench: Bench, memory: FakeMemory) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @bench.profile
    def step() -> None:
        raise Rude  # A

    with pytest.raises(Rude):
        step()
    assert bench.raised() == {"A": "Rude"}


def test_a_caught_exception_and_its_frames_are_freed_at_once(
    bench: Bench, memory: FakeMemory
) -> None:
    class Big:
        pass

    freed = []

    def fails() -> None:
        big = Big()
        weakref.finalize(big, freed.append, True)
        raise MemoryError("out of memory")

    @bench.profile
    def step() -> None:
        try:
            fails()
        except MemoryError:
            pass
        assert freed == [True]

    gc.disable()
    try:
        step()
    finally:
        gc.enable()


def frames_of(error: BaseException) -> list[tuple[Any, ...]]:
    """Return where an exception passed, in this file."""
    places = traceback.extract_tb(error.__traceback__)
    own = [p for p in places if p.filename == __file__ and p.name.startswith("step")]
    return [(p.name, p.lineno, p.end_lineno, p.colno, p.end_colno) for p in own]


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error), frames_of(error), error.__context__, error.__cause__


def test_tracebacks_are_those_of_the_plain_function(bench: Bench, memory: FakeMemory) -> None:
    def step_in(values: list[int], at: int) -> int:
        total = values[0] + values[at]
        return total // values[1]

    def step(values: list[int], at: int) -> int:
        try:
            return step_in(
                values,
                at,
            )
        finally:
            values = []

    plain = [outcome(step, [1, 2], 1), outcome(step, [1, 2], 7), outcome(step, [1, 0], 0)]
    step_in, step = bench.profile(step_in), bench.profile(step)
    measured = [outcome(step, [1, 2], 1), outcome(step, [1, 2], 7), outcome(step, [1, 0], 0)]
    assert measured == plain
    assert plain[0] == 1
    assert [place[0] for place in plain[1][2]] == ["step", "step_in"]
