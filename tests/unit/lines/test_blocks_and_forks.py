"""``with profile:`` blocks, and what a forked child holds."""

import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, FakeMemory

from tensorlens import LineReport
from tensorlens.lines import FunctionLines, build_report, layouts, overview, profile

HERE = Path(__file__).parent


class Blocks:
    """``with blocks:`` measures its block on the bench's engine and keeps the tables."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.open: list[profile.ProfiledBlock] = []
        self.done: list[FunctionLines] = []

    def __enter__(self) -> None:
        self.open.append(profile.ProfiledBlock(self.bench.engine, sys._getframe(1)))

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        block = self.open.pop()
        block.close(sys._getframe(1), error)
        self.done += build_report([block.function], self.bench.engine.counters).functions

    def nets(self, at: int = 0) -> dict[str, tuple[int, int | None]]:
        """Return mark to hits and net, of the lines that ran."""
        return {
            line.source.rpartition("# ")[2]: (line.hits, line.memory["cpu"].net)
            for line in self.done[at].lines
            if line.hits
        }


@pytest.fixture
def block(bench: Bench) -> Blocks:
    return Blocks(bench)


def test_a_block_has_its_lines_and_no_others(
    bench: Bench, memory: FakeMemory, block: Blocks
) -> None:
    memory.allocate(7)
    with block:  # W
        memory.allocate(1)  # A
        for size in (20, 30):  # B
            memory.allocate(size)  # C
    memory.allocate(5000)
    assert block.nets() == {"W": (1, 0), "A": (1, 1), "B": (3, 0), "C": (2, 50)}
    assert block.done[0].calls == 1
    assert block.done[0].note is None
    assert block.done[0].name.startswith("with block in ")
    assert bench.is_idle()


def test_nested_blocks(bench: Bench, memory: FakeMemory, block: Blocks) -> None:
    with block:  # O
        memory.allocate(1)  # A
        with block:  # I
            memory.allocate(20)  # B
        memory.allocate(300)  # C
    inner, outer = block.nets(0), block.nets(1)
    assert inner["B"] == outer["B"] == (1, 20)
    assert outer["A"] == (1, 1)
    assert outer["C"] == (1, 300)
    assert "A" not in inner
    assert "C" not in inner
    assert bench.is_idle()


def test_a_block_within_a_profiled_function(
    bench: Bench, memory: FakeMemory, block: Blocks
) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A
        with block:  # W
            memory.allocate(20)  # B
            memory.spike(1000)  # C
        memory.allocate(300)  # D

    step()
    assert block.nets()["B"] == (1, 20)
    assert bench.hits("A", "W", "B", "C", "D") == [1, 2, 1, 1, 1]
    assert bench.nets("A", "W", "B", "C", "D") == [1, 0, 20, 0, 300]
    assert bench.peaks("A", "B", "C", "D") == [1, 21, 1021, 321]
    assert bench.is_idle()


def test_a_profiled_function_within_a_block(
    bench: Bench, memory: FakeMemory, block: Blocks
) -> None:
    @bench.profile
    def step() -> None:
        memory.spike(900)  # A

    with block:  # W
        step()  # B
        memory.allocate(1)  # C
    assert bench.peaks("A") == [900]
    peaks = {line.source[-1]: line.memory["cpu"].peak for line in block.done[0].lines if line.hits}
    assert peaks == {"W": 1, "B": 900, "C": 1}


def test_a_block_that_raises_has_the_line_marked(
    bench: Bench, memory: FakeMemory, block: Blocks
) -> None:
    with pytest.raises(ValueError, match="no"), block:
        memory.allocate(1)
        raise ValueError("no")  # A
    marked = [line.source[-1] for line in block.done[0].lines if line.raised == "ValueError: no"]
    assert marked == ["A"]
    assert bench.is_idle()


def test_a_block_in_a_recursive_function_is_of_one_frame(
    bench: Bench, memory: FakeMemory, block: Blocks
) -> None:
    def down(depth: int) -> None:
        memory.allocate(1)  # A
        if depth:  # B
            down(depth - 1)  # C
        elif not block.open:
            raise AssertionError

    with block:  # W
        down(3)  # D
    assert block.nets() == {"W": (1, 0), "D": (1, 4)}

    def again(depth: int) -> None:
        with block:  # X
            memory.allocate(1)  # E
            if depth:  # F
                again(depth - 1)  # G
            memory.allocate(10)  # H

    block.done.clear()
    again(1)
    inner, outer = block.nets(0), block.nets(1)
    assert inner == {"X": (1, 0), "E": (1, 1), "F": (1, 0), "H": (1, 10)}
    assert outer == {"X": (1, 0), "E": (1, 1), "F": (1, 0), "G": (1, 11), "H": (1, 10)}
    assert bench.is_idle()


def test_a_block_in_a_generator_is_not_charged_for_the_consumer(
    bench: Bench, memory: FakeMemory, block: Blocks
) -> None:
    def numbers() -> Iterator[int]:
        with block:  # W
            memory.allocate(1)  # A
            yield 1  # B
            memory.allocate(20)  # C

    for _ in numbers():
        memory.allocate(5000)
    assert block.nets() == {"W": (1, 0), "A": (1, 1), "B": (1, 0), "C": (1, 20)}
    assert bench.is_idle()


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text), "utf-8")
    places = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": places},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocks_at_module_level_interleaved_in_generators(tmp_path: Path) -> None:
    out = script(
        tmp_path,
        """
        import io
        import tensorlens
        from bench import FakeMemory
        from tensorlens.lines import build_report
        from tensorlens.lines import engine

        engine.counters._find = list
        engine.counters._host = FakeMemory
        tables = []
        tensorlens.profile.profiler._print = lambda entries, options: tables.append(
            build_report(entries, engine.counters)
        )

        def numbers(name):
            with tensorlens.profile:
                yield name + "1"
                if name == "a": 5

        with tensorlens.profile:
            a, b = numbers("a"), numbers("b")
            assert next(a) + next(b) == "a1b1"
            assert next(a, "end") + next(b, "end") == "endend"
        for table in tables:
            (function,) = table.functions
            print(function.name, [line.hits for line in function.lines])
        """,
    )
    assert out.splitlines() == [
        "with block in numbers() [1, 1, 1]",
        "with block in numbers() [1, 1, 1]",
        "with block in module [1, 1, 1, 1]",
    ]


def test_a_block_in_exec_without_source(bench: Bench, memory: FakeMemory, block: Blocks) -> None:
    text = "with block:\n    memory.allocate(5)\n    memory.allocate(6)\n"
    exec(text, {"block": block, "memory": memory})
    (table,) = block.done
    assert {line.lineno: line.hits for line in table.lines if line.hits} == {1: 1, 2: 1, 3: 1}
    assert table.note == "the source is not available (<string>)"


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(bench: Bench, body: Callable[[], object]) -> str:
    """Run ``body`` in a forked child; return what it printed there."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        bench.engine.forked()  # as os.register_at_fork has it done for the engine of the process
        out = io.StringIO()
        try:
            print(body(), file=out)
        except BaseException as error:
            print(repr(error), file=out)
        os.write(writing, out.getvalue().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text.strip()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_starts_afresh_and_the_parent_keeps_its_figures(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def step(size: int) -> None:
        memory.allocate(size)  # A

    def body() -> object:
        step(300)
        return bench.function("step").calls, bench.nets("A"), bench.is_idle()

    step(1)
    assert in_child(bench, body) == "(1, [300], True)"
    step(20)
    assert bench.function("step").calls == 2
    assert bench.nets("A") == [21]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_inside_a_profiled_function(bench: Bench, memory: FakeMemory) -> None:
    texts = []

    @bench.profile
    def helper() -> None:
        memory.allocate(4000)  # H

    def body() -> object:
        helper()
        return bench.nets("H"), bench.hits("A", "B"), bench.function("step").calls

    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A
        texts.append(in_child(bench, body))  # B
        memory.allocate(20)  # C

    step()
    assert texts == ["([4000], [0, 0], 0)"]
    assert bench.nets("A", "B", "C") == [1, 0, 20]
    assert bench.hits("A", "B", "C", "H") == [1, 1, 1, 0]
    assert bench.is_idle()


@needs_fork
def test_the_engine_of_the_process_starts_afresh_in_a_child(tmp_path: Path) -> None:
    out = script(
        tmp_path,
        """
        import os, tensorlens
        from tensorlens.lines import engine
        from bench import FakeMemory

        memory = FakeMemory()
        engine.counters._find = list
        engine.counters._host = lambda: memory
        tensorlens.profile.profiler._print = lambda *_: None

        @tensorlens.profile
        def step(size):
            memory.allocate(size)

        step(5)
        child = os.fork()
        if not child:
            step(7)
        else:
            os.waitpid(child, 0)
        (function,) = tensorlens.profile.result().functions
        print("parent" if child else "child", function.calls, function.lines[-1].memory["cpu"].net)
        """,
    )
    assert sorted(out.splitlines()) == ["child 1 7", "parent 1 5"]


def test_with_line_has_no_mark(bench: Bench, memory: FakeMemory, block: Blocks) -> None:
    memory.allocate(5)
    with block:  # W
        memory.allocate(100)  # A
        memory.allocate(1)  # B
    found = overview(layouts(LineReport(tuple(block.done), ())))
    assert [each.row.source.rpartition("# ")[2] for each in found.peaks] == ["B"]
    assert [each.row.source.rpartition("# ")[2] for each in found.growths] == ["A"]
