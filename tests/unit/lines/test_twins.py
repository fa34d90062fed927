"""A twin reports the lines that ``sys.settrace`` reports, and does what its function does."""

import contextlib
import dis
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import statements
from bench import Bench

if sys.version_info >= (3, 12):
    pytest.skip("from 3.12 on there are no twins: sys.monitoring", allow_module_level=True)

from tensorlens.lines import instrumentation as twins
from tensorlens.lines.instrumentation import hooked_code, make_twin

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


def hooked(function: FunctionType, argument: Any) -> Outcome:
    lines: list[int] = []

    def hook_for(lineno: int, *, moved: bool) -> Callable[[], None]:
        def hook() -> None:
            if not moved or lines[-1:] != [lineno]:
                lines.append(lineno)

        return hook

    twin = FunctionType(
        hooked_code(function.__code__, hook_for),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return lines, outcome_of(twin, argument)


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
    threads = Bench("decorated").engine.threads
    sources = sorted(Path(dis.__file__).parent.glob("*.py"))[::2]
    assembled = refused = 0
    for source in sources:
        for code in codes_in(compile(source.read_text("utf-8"), str(source), "exec")):
            closure = tuple(a_cell() for _ in code.co_freevars)
            function = FunctionType(code, {}, code.co_name, None, closure)
            twin = make_twin(function, threads)
            if twin is None:
                refused += bool(code.co_flags & 1) and not code.co_flags & twins._SUSPENDS
                continue
            made = twin.__code__
            for name in ("co_varnames", "co_freevars", "co_cellvars", "co_name", "co_qualname"):
                assert getattr(made, name) == getattr(code, name)
            for name in ("co_argcount", "co_kwonlyargcount", "co_flags", "co_firstlineno"):
                assert getattr(made, name) == getattr(code, name)
            assembled += 1
    assert assembled > 1500
    assert refused < assembled / 50  # those are traced


def a_cell() -> Any:
    value = None
    return (lambda: value).__closure__[0]  # type: ignore[index]


def test_bytecode_that_cannot_be_assembled_is_traced_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any) -> CodeType:
        raise RuntimeError("cannot assemble")

    monkeypatch.setattr("tensorlens.lines.instrumentation.hooked_code", refuse)
    bench = Bench("decorated")

    @bench.profile
    def step() -> Any:
        bench.memory.allocate(5)  # A
        return sys.gettrace()

    assert step() is not None
    assert bench.nets("A") == [5]
    assert sys.gettrace() is None
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
