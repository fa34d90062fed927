"""Tables of graphs that a framework tells of, whose lines ran only to build them."""

from types import CodeType
from typing import Any

import pytest
from bench import Bench, FakeFramework, FakeMemory

from tensorlens.frameworks import NodeFigures, TracedFigures, compiler


class FakeTracedCode:
    def __init__(self, code: CodeType) -> None:
        self.first = code.co_firstlineno
        self.on = False
        self.found: TracedFigures | None = None

    def resume(self) -> None:
        self.on = True

    def pause(self) -> None:
        self.on = False

    def figures(self) -> TracedFigures | None:
        return self.found

    def clear(self) -> None:
        self.found = None


class FrameworkWithGraphs(FakeFramework):
    def __init__(self, *devices: FakeMemory, cpu: FakeMemory | None = None) -> None:
        super().__init__(*devices, cpu=cpu)
        self.followed: list[FakeTracedCode] = []

    def follow_code(self, code: CodeType) -> Any:
        self.followed.append(FakeTracedCode(code))
        return self.followed[-1]


@pytest.fixture
def followed(bench: Bench) -> list[FakeTracedCode]:
    framework = FrameworkWithGraphs(cpu=bench.memory)
    bench.frameworks.append(framework)
    return framework.followed


def figures(of: FakeTracedCode, compiled: bool = False) -> TracedFigures:
    return TracedFigures(
        device="cpu",
        calls=3,
        lines={of.first + 1: NodeFigures(3, 100, 80, 30, 10, 10)},
        backward={of.first + 2: NodeFigures(2, 7, 7, 0, 0, 0)},
        whole=NodeFigures(3, 500, 400, 30, 10, 10),
        growth=20,
        compiler="XLA" if compiled else None,
        notes=(),
    )


def test_a_table_of_nodes(bench: Bench, followed: list[FakeTracedCode]) -> None:
    def step() -> None:
        first = 1
        del first

    profiler: Any = bench.profiler
    profiler(step)
    (code,) = followed
    assert code.on
    code.found = figures(code)
    (function,) = profiler.result().functions
    assert (function.execution, function.calls) == ("graph", 3)
    head, first, last = function.lines
    assert (head.hits, head.memory) == (0, {})
    assert first.hits == 3
    memory = first.memory["cpu"]
    assert (memory.allocated, memory.peak, memory.net, memory.backward) == (100, 80, 30, 0)
    assert memory.reserved is None
    # of what was left when calls ended, no more stayed than the device grew by
    assert memory.growth == 20
    assert (last.hits, last.memory["cpu"].allocated, last.memory["cpu"].backward) == (2, 0, 7)
    assert function.whole["cpu"].allocated == 500
    code.found = figures(code, compiled=True)
    (function,) = profiler.result().functions
    assert function.note == "compiled by XLA: its lines do not run"
    assert [line.memory["cpu"].peak for line in function.lines] == [400]
    profiler.clear()
    (function,) = profiler.result().functions
    assert function.note == "not called since the figures were cleared"


def test_graph_building_is_not_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> int:
        return 1

    profiler: Any = bench.profiler
    profiled = profiler(step)
    monkeypatch.setattr(compiler, "is_building", lambda: True)
    assert profiled() == profiled() == 1
    monkeypatch.undo()
    (function,) = profiler.result().functions
    assert function.calls == 0
    assert not any(line.hits for line in function.lines)
    assert function.note == "it ran 2 times to build graphs, and none was seen to run"
