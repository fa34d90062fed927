"""Profiled functions inside profiled functions: each read starts a new peak for everybody."""

import sys

import pytest
from bench import Bench, FakeMemory

from tensorlens.lines import LineMemory


def test_the_outer_line_has_the_peak_before_the_call(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def inner() -> None:
        memory.allocate(1)  # I

    @bench.profile
    def outer() -> None:
        memory.spike(700), inner()  # A
        memory.allocate(0)  # B

    outer()
    assert bench.at("A") == LineMemory(1, 700, 700, 1, 1, 1)
    assert bench.at("I") == LineMemory(1, 1, 700, 1, 1, 1)
    assert bench.at("B").peak == 1


def test_the_outer_line_has_the_peak_inside_the_call(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def inner() -> None:
        memory.allocate(5)  # I
        memory.spike(300)  # J
        memory.free(5)  # K

    @bench.profile
    def outer() -> None:
        memory.allocate(10)  # A
        inner()  # B
        memory.allocate(1)  # C

    outer()
    assert bench.peaks("A", "B", "C") == [10, 315, 11]
    assert bench.peaks("I", "J", "K") == [15, 315, 15]
    assert bench.nets("A", "B", "C") == [10, 0, 1]


def test_the_outer_line_has_the_peak_after_the_call(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def inner() -> None:
        memory.spike(20)  # I

    @bench.profile
    def outer() -> None:
        inner(), memory.spike(90)  # A
        memory.allocate(1)  # B

    outer()
    assert bench.peaks("A", "B", "I") == [90, 1, 20]


def test_the_peak_travels_up_through_many_levels(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def lowest() -> None:
        memory.spike(1000)  # L

    def unprofiled() -> None:
        lowest()

    @bench.profile
    def middle() -> None:
        unprofiled()  # M

    @bench.profile
    def top() -> None:
        middle()  # T
        memory.allocate(1)  # U

    top()
    assert bench.peaks("L", "M", "T", "U") == [1000, 1000, 1000, 1]


def test_recursion_has_one_state_per_frame(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def down(depth: int) -> None:
        memory.allocate(10)  # A
        if depth:
            down(depth - 1)  # B
        memory.free(10)  # C

    down(3)
    # four frames: B runs in three of them, and gives back within all that it took
    assert bench.hits("A", "B", "C") == [4, 3, 4]
    assert bench.at("A") == LineMemory(40, 40, 40, 40, 10, 10)
    assert bench.at("B") == LineMemory(30, 40, 40, 0, 0, 0)
    # the deepest C ends first, at 30; the outermost begins at 10
    assert bench.at("C") == LineMemory(30, 40, 40, -40, -10, -10)
    assert bench.function("down").calls == 4


def test_lines_of_mutual_recursion(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def ping(left: int) -> None:
        memory.allocate(1)  # A
        if left:
            pong(left - 1)  # B

    @bench.profile
    def pong(left: int) -> None:
        memory.allocate(100)  # C
        if left:
            ping(left - 1)  # D

    ping(4)  # ping 4, pong 3, ping 2, pong 1, ping 0
    assert bench.hits("A", "B", "C", "D") == [3, 2, 2, 2]
    assert bench.nets("A", "B", "C", "D") == [3, 202 + 101, 200, 102 + 1]
    assert bench.peaks("A", "B", "C", "D") == [203, 203, 202, 203]


def test_deep_recursion_reaches_as_deep_as_without_us(bench: Bench, memory: FakeMemory) -> None:
    limit = sys.getrecursionlimit()

    @bench.profile
    def down(depth: int) -> int:
        memory.allocate(1)  # A
        return 0 if not depth else down(depth - 1) + 1

    assert down(200) == 200
    assert bench.at("A") == LineMemory(201, 201, 201, 201, 1, 1)
    assert sys.getrecursionlimit() == limit
    assert bench.is_idle()


def test_a_recursion_that_runs_out_of_stack_leaves_things_usable(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def forever() -> None:
        forever()  # A

    with pytest.raises(RecursionError):
        forever()
    assert bench.raised().keys() == {"A"}

    @bench.profile
    def step() -> None:
        memory.allocate(7)  # B

    step()
    assert bench.at("B") == LineMemory(7, 7, 7, 7, 7, 7)
    assert bench.is_idle()


def test_two_profilers_see_the_same_lines(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(8)  # A

    other = bench.another_profiler(step)
    with other:
        step()
    step()
    (function,) = other.result().functions
    (line,) = [line for line in function.lines if line.source.endswith("# A")]
    assert (line.hits, line.memory["cpu"]) == (1, LineMemory(8, 8, 8, 8, 8, 8))
    assert bench.hits("A") == [2]
    assert bench.at("A") == LineMemory(16, 16, 16, 16, 8, 8)


def test_comprehensions_and_lambdas_are_part_of_their_line(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step() -> list[int]:
        done = [memory.allocate(size) for size in (1, 2, 3)]  # A
        add = lambda size: memory.allocate(size)  # noqa: E731  # B
        sum(add(size) or 0 for size in (10, 20))  # C
        return done  # D

    step()
    assert bench.nets("A", "B", "C", "D") == [6, 0, 30, 0]
    assert bench.peaks("A", "C") == [6, 36]
    assert bench.function("step").calls == 1


def test_a_multi_line_statement_is_charged_where_it_runs(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        print(
            memory.allocate(1),  # A
            memory.allocate(20),  # B
            memory.allocate(300),  # C
            file=open("/dev/null", "w"),  # noqa: PTH123
        )
        memory.allocate(4000)  # D

    step()
    assert bench.nets("A", "B", "C", "D") == [1, 20, 300, 4000]


def test_class_bodies_and_functions_made_inside_are_not_the_function(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step() -> None:
        class Inside:
            memory.allocate(5)  # A

            def method(self) -> None:
                memory.allocate(7)  # B

        Inside().method()  # C

    step()
    assert bench.hits("A", "B", "C") == [0, 0, 1]
    assert bench.nets("C") == [7]
    assert bench.function("step").calls == 1
