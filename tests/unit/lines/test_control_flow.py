"""Every kind of statement, with hits counted by hand."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from bench import Bench, FakeMemory


def test_break_continue_and_else(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        for number in range(5):  # A
            if number == 1:  # B
                continue  # C
            if number == 3:  # D
                break  # E
            memory.allocate(number)  # F
        else:
            memory.allocate(1000)  # G

    step()
    assert bench.hits("A", "B", "C", "D", "E", "F", "G") == [4, 4, 1, 3, 1, 2, 0]
    assert bench.nets("F") == [2]


def test_while_one_liner_counts_each_round(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(left: int) -> int:
        # fmt: off
        while left: memory.allocate(left); left -= 1  # noqa: E701, E702  # A
        # fmt: on
        return left  # B

    step(3)
    assert bench.nets("A", "B") == [6, 0]
    assert bench.peaks("A") == [6]
    assert bench.hits("B") == [1]


def test_match_runs_the_case_that_fits(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(value: Any) -> None:
        match value:  # A
            case [1, rest]:  # B
                memory.allocate(rest)  # C
            case {"size": size}:
                memory.allocate(size)  # D
            case _:
                memory.allocate(1000)  # E

    step([1, 5])
    step({"size": 7})
    assert bench.hits("A", "C", "D", "E") == [2, 1, 1, 0]
    assert bench.nets("C", "D") == [5, 7]


def test_try_except_else_finally(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(fails: bool) -> None:
        try:
            memory.allocate(1)  # A
            if fails:
                raise ValueError("no")  # B
        except ValueError:
            memory.allocate(20)  # C
        else:
            memory.allocate(300)  # D
        finally:
            memory.allocate(4000)  # E

    step(False)
    step(True)
    assert bench.hits("A", "B", "C", "D", "E") == [2, 1, 1, 1, 2]
    assert bench.nets("A", "C", "D", "E") == [2, 20, 300, 8000]
    assert bench.raised() == {}


def test_return_in_finally_swallows_the_exception(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> int:
        try:
            memory.allocate(1)  # A
            raise ValueError("no")  # B
        finally:
            return 5  # noqa: B012  # C

    assert step() == 5
    assert bench.hits("A", "B", "C") == [1, 1, 1]
    assert bench.raised() == {}


def test_with_blocks_and_their_exit(bench: Bench, memory: FakeMemory) -> None:
    @contextlib.contextmanager
    def holding(size: int) -> Iterator[None]:
        memory.allocate(size)
        try:
            yield
        finally:
            memory.free(size)

    @bench.profile
    def step() -> None:
        with holding(100):  # A
            memory.allocate(1)  # B
        memory.allocate(5)  # C

    step()
    # the with line runs twice: going in and coming out
    assert bench.hits("A", "B", "C") == [2, 1, 1]
    assert bench.nets("A", "B", "C") == [0, 1, 5]
    assert bench.at("A").net_max == 100
    assert bench.peaks("B", "C") == [101, 6]


def test_a_profiled_context_manager(bench: Bench, memory: FakeMemory) -> None:
    def holding(size: int) -> Iterator[int]:
        memory.allocate(size)  # A
        yield size  # B
        memory.free(size)  # C

    managed = contextlib.contextmanager(bench.profile(holding))
    with managed(30) as size:
        memory.allocate(1000)
        memory.spike(5000)
    assert size == 30
    assert bench.nets("A", "B", "C") == [30, 0, -30]
    # what is left of the yield line runs with the 1000 bytes there, but not with the 5000
    assert bench.peaks("A", "B", "C") == [30, 1030, 1030]
    assert bench.hits("A", "B", "C") == [1, 1, 1]


def test_global_and_nonlocal_names(bench: Bench, memory: FakeMemory) -> None:
    total = 1

    @bench.profile
    def step() -> None:
        global _left_behind
        nonlocal total
        total += 1  # A
        _left_behind = total  # B

    step()
    assert (total, _left_behind) == (2, 2)
    assert bench.hits("A", "B") == [1, 1]


_left_behind = 0


def test_zero_argument_super_and_class_cell(bench: Bench, memory: FakeMemory) -> None:
    class Base:
        def size(self) -> int:
            return 5

    class Derived(Base):
        @bench.profile
        def size(self) -> int:
            memory.allocate(super().size())  # A
            return memory.allocated, __class__  # type: ignore # B

    assert Derived().size() == (5, Derived)
    assert bench.nets("A") == [5]


def test_odd_arguments_arrive_as_they_are(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step(a: Any, /, b: Any = 2, *rest: Any, c: Any = 3, **others: Any) -> Any:
        return a, b, rest, c, others  # A

    assert step(1) == (1, 2, (), 3, {})
    assert step(1, 5, 6, 7, c=8) == (1, 5, (6, 7), 8, {})
    odd = ["a", "self", "func", "given", "named", "args", "kwargs", "match", "_"]
    odd += ["class", "None", "no name", "", "__debug__", "\ufb01", "x\x00"]
    for name in odd:
        assert step(0, **{name: 1}) == (0, 2, (), 3, {name: 1})
    assert list(step(0, **dict.fromkeys(odd))[4]) == odd
    many = {f"name{number}": number for number in range(60)}
    assert step(*range(50), **many) == (0, 1, tuple(range(2, 50)), 3, many)
    assert bench.hits("A") == [len(odd) + 4]


def test_arguments_that_do_not_fit_are_refused_as_ever(bench: Bench, memory: FakeMemory) -> None:
    def step(a: int, *, b: int) -> None:
        memory.allocate(1)

    calls: list[Any] = [{}, {"a": 1}, {"a": 1, "c": 2}, {"b": 1}]

    def errors(function: Any) -> list[str]:
        texts = []
        for arguments in calls:
            with pytest.raises(TypeError) as caught:
                function(**arguments)
            texts.append(str(caught.value))
        return texts

    plain = errors(step)
    assert errors(bench.profile(step)) == plain
    function = bench.function("step")
    assert function.calls == 0
    assert [line.hits for line in function.lines if line.raised] == []
    assert bench.is_idle()


def test_code_without_source_has_its_line_numbers(bench: Bench, memory: FakeMemory) -> None:
    scope: dict[str, Any] = {"memory": memory}
    exec("def step():\n  memory.allocate(3)\n\n  memory.allocate(4)\n", scope)
    bench.profile(scope["step"])
    step = bench.profile(scope["step"])
    step()
    function = bench.function("step")
    assert [(line.lineno, line.hits) for line in function.lines if line.hits] == [(2, 1), (4, 1)]
    assert [line.memory["cpu"].net for line in function.lines if line.hits] == [3, 4]
    assert function.note == "the source is not available (<string>)"


def test_lambdas_are_functions(bench: Bench, memory: FakeMemory) -> None:
    step = bench.profile(lambda size: memory.allocate(size))  # A
    step(9)
    assert bench.at("A").net == 9
    assert bench.function("<lambda>").calls == 1


def test_same_qualname_in_two_modules_are_two_functions(bench: Bench, memory: FakeMemory) -> None:
    steps = []
    for module, size in (("one", 10), ("two", 2000)):
        scope: dict[str, Any] = {"memory": memory, "__name__": module}
        code = compile(f"def step():\n    memory.allocate({size})\n", f"{module}.py", "exec")
        exec(code, scope)
        steps.append(bench.profile(scope["step"]))
    for step in steps:
        step()
    found = {f.module: line.memory["cpu"].net for f in bench.functions() for line in f.lines[-1:]}
    assert found == {"one": 10, "two": 2000}


def test_equal_functions_are_two_functions(bench: Bench, memory: FakeMemory) -> None:
    def made(size: int) -> Any:
        scope: dict[str, Any] = {"memory": memory, "size": size}
        exec(compile("def step():\n    memory.allocate(size)\n", "same.py", "exec"), scope)
        return scope["step"]

    first, second = made(10), made(2000)
    assert first.__code__ == second.__code__
    first, second = bench.profile(first), bench.profile(second)
    first(), second(), second()
    nets = [line.memory["cpu"].net for f in bench.functions() for line in f.lines[-1:]]
    assert nets == [10, 4000]
