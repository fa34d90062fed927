"""A twin reports the lines that ``sys.settrace`` reports, and does what its function does."""

import contextlib
import dis
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import statements
from bench import WAYS, Bench

if sys.version_info >= (3, 12):
    pytest.skip("from 3.12 on there are no twins: sys.monitoring", allow_module_level=True)

from tensorlens.lines import instrumentation, tracer

Outcome = tuple[list[int], Any]


def outcome_of(function: Callable[..., Any], argument: Any) -> Any:
    try:
        return "returned", repr(function(argument)).partition(" at 0x")[0]
    except Exception as error:
        context = error.__context__
        frames = list(traceback.extract_tb(error.__traceback__)[1:])
        places = [(f.lineno, f.end_lineno, f.colno, f.end_colno) for f in frames]
        return "raised", type(error), str(error), places, type(context), error.__suppress_context__


def traced(function: FunctionType, argument: Any) -> Outcome:
    lines: list[int] = []

    def local(frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
        return local

    def trace(frame: Any, event: str, arg: Any) -> Any:
        return local if frame.f_code is function.__code__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        outcome = outcome_of(function, argument)
    finally:
        sys.settrace(before)
    return lines, outcome


class Lines:
    """Takes the events of one function and keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    def on_line(self, code: CodeType, lineno: int) -> None:
        self.lines.append(lineno)

    def on_moved(self, code: CodeType, lineno: int) -> None:
        if self.lines[-1:] != [lineno]:
            self.lines.append(lineno)

    def on_other(self, *_: Any) -> None:
        """Any other event."""

    on_start = on_return = on_yield = on_resume = on_unwind = on_other


def hooked(function: FunctionType, argument: Any) -> Outcome:
    events: Any = Lines()
    twin = FunctionType(
        instrumentation.hooked_code(function.__code__, events, function.__code__),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return events.lines, outcome_of(twin, argument)


@pytest.mark.parametrize("function", statements.FUNCTIONS, ids=lambda f: f.__qualname__)
def test_a_twin_reports_what_a_trace_function_sees(function: FunctionType) -> None:
    arguments = [n for known, n in statements.CASES if known is function]
    assert arguments
    for argument in arguments:
        with set_back(function):
            expected = traced(function, argument)
        with set_back(function):
            assert hooked(function, argument) == expected
        assert expected[0] or function is statements.unreachable


@contextlib.contextmanager
def set_back(function: FunctionType) -> Iterator[None]:
    """Give a closure its values back, so that two runs begin alike."""
    cells = function.__closure__ or ()
    values = [cell.cell_contents for cell in cells]
    yield
    for cell, value in zip(cells, values, strict=True):
        cell.cell_contents = value


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def test_functions_of_the_standard_library_assemble() -> None:
    events: Any = Lines()
    sources = sorted(Path(dis.__file__).parent.glob("*.py"))[::12]
    assembled = 0
    for source in sources:
        for code in codes_in(compile(source.read_text("utf-8"), str(source), "exec")):
            made = instrumentation.hooked_code(code, events, code)
            for name in ("co_varnames", "co_freevars", "co_cellvars", "co_name", "co_qualname"):
                assert getattr(made, name) == getattr(code, name)
            for name in ("co_argcount", "co_kwonlyargcount", "co_flags", "co_firstlineno"):
                assert getattr(made, name) == getattr(code, name)
            assert tracer.original(made) is code
            assembled += 1
    assert assembled > 300


def test_bytecode_that_cannot_be_assembled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> CodeType:
        raise RuntimeError("cannot assemble")

    monkeypatch.setattr("tensorlens.lines.instrumentation.hooked_code", refuse)
    for way in WAYS:
        bench = Bench(way)

        def step() -> int:
            return 5

        assert bench.profile(step)() == 5
        assert "its bytecode cannot be made to report its lines" in str(bench.function("step").note)
        bench.close()


def test_a_function_has_its_own_code_again_when_the_profiler_lets_go() -> None:
    bench = Bench("around")

    def step() -> int:
        bench.memory.allocate(5)  # A
        return 5

    code, profiler = step.__code__, bench.another_profiler(step)
    same = inspect.getsource(step), step.__name__
    with profiler:
        assert step.__code__ is not code
        assert inspect.getsource(step) == same[0]
        with bench.another_profiler(step) as inside:
            assert step() == 5
        assert step.__code__ is not code
        assert sys.gettrace() is None
    assert step.__code__ is code
    assert [each.result().functions[0].calls for each in (profiler, inside)] == [1, 1]
    bench.close()


def test_a_twin_needs_no_trace_function() -> None:
    bench = Bench("decorated")

    @bench.profile
    def step() -> Any:
        bench.memory.allocate(5)  # A
        return sys.gettrace()

    assert step() is None
    assert bench.nets("A") == [5]
    bench.close()


def test_a_twin_takes_defaults_closure_and_globals_of_its_function() -> None:
    bench = Bench("decorated")
    free = 1

    @bench.profile
    def step(a: int = 2, *, b: int = 3) -> tuple[Any, ...]:
        nonlocal free
        free += 1
        return a, b, free, __name__

    assert step() == (2, 3, 2, "test_twins")
    assert free == 2
    bench.close()
