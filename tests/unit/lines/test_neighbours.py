"""Debuggers, coverage and other profilers work on beside us, and we beside them."""

import cProfile
import importlib.util
import json
import os
import pstats
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import WAYS, Bench, FakeMemory

from tensorlens.errors import ProfileError
from tensorlens.lines import ProfiledBlock, build_report

HERE = Path(__file__).parent
OLD = sys.version_info < (3, 12)


def run(tmp_path: Path, script: str, *command: str, stdin: str = "") -> str:
    """Run a script that has a ``bench`` in a process of its own; return what it printed."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script), "utf-8")
    places = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    done = subprocess.run(
        [sys.executable, *command, str(path)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": places},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class FakeDebugger:
    """A trace function that notes the lines of some functions."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name not in ("step", "unprofiled", "numbers"):
            return None
        if event == "line":
            self.lines.append((frame.f_code.co_name, frame.f_lineno))
        return self


@pytest.fixture
def debugger() -> Iterator[FakeDebugger]:
    before = sys.gettrace()
    debugger = FakeDebugger()
    sys.settrace(debugger)
    yield debugger
    sys.settrace(before)


@pytest.mark.parametrize("way", WAYS)
def test_a_debugger_that_was_there_sees_every_line(way: str, debugger: FakeDebugger) -> None:
    bench = Bench(way)

    def unprofiled() -> None:
        bench.memory.allocate(20)

    def numbers() -> Iterator[int]:
        bench.memory.allocate(300)  # C
        yield 1

    def step() -> None:
        bench.memory.allocate(1)  # A
        unprofiled()  # B
        for _ in numbers():
            pass

    step()
    alone, debugger.lines = debugger.lines, []
    measured, numbers = bench.profile(step), bench.profile(numbers)
    bench.memory.free(321)
    measured()
    assert [name for name, _ in alone].count("numbers") == 2
    assert debugger.lines == alone
    assert bench.nets("A", "B", "C") == [1, 20, 300]
    bench.close()
    assert sys.gettrace() is debugger


def test_a_debugger_may_change_its_local_function(debugger: FakeDebugger) -> None:
    bench = Bench("decorated")
    seen = []

    def local(frame: Any, event: str, arg: Any) -> Any:
        seen.append(event)
        return None if len(seen) == 2 else local

    def trace(frame: Any, event: str, arg: Any) -> Any:
        return local if frame.f_code.co_name == "step" else None

    @bench.profile
    def step() -> None:
        bench.memory.allocate(1)  # A
        bench.memory.allocate(20)  # B
        bench.memory.allocate(300)  # C

    sys.settrace(trace)
    step()
    assert sys.gettrace() is trace
    sys.settrace(debugger)
    assert bench.nets("A", "B", "C") == [1, 20, 300]
    assert seen[:2] == ["line", "line"]
    bench.close()


@pytest.mark.skipif(not OLD, reason="3.12 and later have no trace function")
def test_a_block_leaves_a_debugger_alone_and_says_so(debugger: FakeDebugger) -> None:
    bench = Bench("around")
    blocks = []

    def step(measured: bool) -> None:
        if measured:
            blocks.append(ProfiledBlock(bench.engine, sys._getframe()))
        bench.memory.allocate(1)
        if measured:
            blocks[0].close(sys._getframe(), None)

    step(False)
    alone = len(debugger.lines)
    step(True)
    assert len(debugger.lines) == 2 * alone + 2
    assert sys.gettrace() is debugger
    (function,) = build_report([blocks[0].function], bench.engine.counters).functions
    assert function.note == (
        "another tracer (FakeDebugger) traces this thread: on Python 3.11 a block has no lines then"
    )
    assert not any(line.hits for line in function.lines)
    assert bench.is_idle()


SCRIPT = """
    from bench import Bench
    import sys
    bench = Bench({way!r})
    memory = bench.memory

    def unprofiled():
        memory.allocate(20)
        return 5  # unprofiled

    @bench.profile
    def step():
        memory.allocate(1)  # A
        unprofiled()  # B
        memory.allocate(300)  # C

    step()
    step()
    if bench.enabled:
        bench.enabled = False
        bench.profiler.disable_by_count()
    print("NETS", bench.nets("A", "B", "C"), bench.hits("A", "B", "C"))
    print("NOTE", bench.function("step").note)
"""


@pytest.mark.parametrize("way", WAYS)
def test_pdb_stops_in_profiled_and_unprofiled_code(tmp_path: Path, way: str) -> None:
    script = SCRIPT.format(way=way)
    text = textwrap.dedent(script).splitlines()
    a = 1 + next(i for i, line in enumerate(text) if line.endswith("# A"))
    u = 1 + next(i for i, line in enumerate(text) if line.endswith("# unprofiled"))
    stdin = f"b {a}\nb {u}\nc\nc\nn\nc\nc\nc\nq\n"
    out = run(tmp_path, script, "-m", "pdb", stdin=stdin)
    stops = [line for line in out.splitlines() if "script.py(" in line]
    assert [s.partition("script.py")[2] for s in stops][1:6] == [
        f"({a})step()",
        f"({u})unprofiled()",
        f"({u})unprofiled()->5",
        f"({a})step()",
        f"({u})unprofiled()",
    ]
    assert "NETS [2, 40, 600] [2, 2, 2]" in out
    assert "NOTE None" in out


@pytest.mark.parametrize("way", WAYS)
def test_breakpoint_inside_a_profiled_function(tmp_path: Path, way: str) -> None:
    script = SCRIPT.format(way=way).replace("unprofiled()  # B", "breakpoint()  # B")
    out = run(tmp_path, script, stdin="p memory.allocated\nc\np memory.allocated\nc\n")
    assert "(Pdb) 1\n" in out
    assert "(Pdb) 302\n" in out
    # no trace function, no quarrel
    assert "NETS [2, 0, 600] [2, 2, 2]" in out
    assert "NOTE None" in out


needs_coverage = pytest.mark.skipif(
    importlib.util.find_spec("coverage") is None, reason="coverage is not installed"
)


@needs_coverage
@pytest.mark.parametrize("core", ["ctrace", "sysmon"])
@pytest.mark.parametrize("way", WAYS)
def test_coverage_is_the_same_with_and_without(
    tmp_path: Path, way: str, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if core == "sysmon" and OLD:
        pytest.skip("coverage's sysmon core needs sys.monitoring")
    monkeypatch.setenv("COVERAGE_CORE", core)
    script = """
        from bench import Bench
        import sys, threading
        bench = Bench("around" if {way!r} == "around" else "decorated")
        profile = (lambda f: f) if {way!r} == "plain" else bench.profile
        memory = bench.memory

        def helper(flag):
            if flag:
                memory.allocate(1)
            else:
                memory.allocate(2)
            return 5

        def numbers():
            yield helper(True)
            yield 2
            raise SystemExit

        numbers = profile(numbers)

        @profile
        def step(flag):
            total = 0
            for number in numbers():
                total += number
                if number == 2:
                    break
            try:
                total += [][0]
            except IndexError:
                total += 1
            if flag:
                helper(False)
            else:
                total = 100
            return total

        def in_thread():
            step(False)

        step(True)
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        helper(True)
        # measured until here
        if bench.enabled:
            bench.enabled = False
            bench.profiler.disable_by_count()
        helper(True)
        if {way!r} != "plain":
            print("CALLS", bench.function("step").calls, bench.function("step").note)
    """
    # the same text every time: the way is told by the environment
    script = script.replace("{way!r}", "sys.argv[0] and __import__('os').environ['WAY']")
    script = script.replace(
        "from bench import Bench\n        import sys, threading",
        "import sys, threading\n        from bench import Bench",
    )
    executed = {}
    for each in ("plain", way):
        monkeypatch.setenv("WAY", each)
        out = run(tmp_path, script, "-m", "coverage", "run", "--branch", "--include=script.py")
        if each != "plain":
            assert "CALLS 2 None" in out
        subprocess.run(
            [sys.executable, "-m", "coverage", "json", "-q"], cwd=tmp_path, check=True, timeout=60
        )
        (seen,) = json.loads((tmp_path / "coverage.json").read_text())["files"].values()
        executed[each] = seen["executed_lines"], seen["executed_branches"]
    last = 1 + (tmp_path / "script.py").read_text().splitlines().index("# measured until here")
    lines, branches = (
        {each: [item for item in seen[at] if key(item) < last] for each, seen in executed.items()}
        for at, key in ((0, lambda line: line), (1, lambda branch: branch[0]))
    )
    assert len(lines["plain"]) > 20
    assert lines[way] == lines["plain"]
    assert branches[way] == branches["plain"]


def test_cprofile_around_and_inside(bench: Bench, memory: FakeMemory) -> None:
    def helper() -> None:
        memory.allocate(20)

    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A
        helper()  # B

    @bench.profile
    def with_one_inside() -> None:
        inside = cProfile.Profile()
        inside.enable()  # C
        helper()  # D
        inside.disable()  # E

    outside = cProfile.Profile()
    outside.enable()
    step()
    outside.disable()
    with_one_inside()
    calls = {key[2]: value[0] for key, value in pstats.Stats(outside).stats.items()}  # type: ignore[attr-defined]
    assert calls["helper"] == calls["step"] == 1
    assert bench.nets("A", "B", "D") == [1, 20, 20]
    assert bench.hits("C", "D", "E") == [1, 1, 1]
    assert bench.is_idle()


def test_line_profiler_around_and_inside(bench: Bench, memory: FakeMemory) -> None:
    from line_profiler import LineProfiler as TimeProfiler

    def helper() -> None:
        memory.allocate(20)  # H

    def step() -> None:
        memory.allocate(1)  # A
        helper()  # B

    outside, inside = TimeProfiler(step, helper), TimeProfiler(helper)
    if OLD:  # before 3.12, without this it puts others' trace functions aside while it is on
        outside.wrap_trace = inside.wrap_trace = True
    measured = bench.profile(step)
    with outside:
        measured()
    assert bench.nets("A", "B") == [1, 20]
    helper = inside(helper)
    measured()
    assert bench.nets("A", "B") == [2, 40]
    timed = inside.get_stats().timings
    assert [hits for lines in timed.values() for _, hits, _ in lines] == [1]
    timed = outside.get_stats().timings
    counted = {key[2].rpartition(".")[2]: [hits for _, hits, _ in v] for key, v in timed.items()}
    assert counted["helper"] == [1]
    if not OLD:  # before 3.12 each knows a function by its code, and there is one at a time
        assert counted["step"] == [1, 1]
    assert bench.is_idle()


@pytest.mark.skipif(OLD, reason="sys.monitoring came with 3.12")
def test_when_others_hold_every_tool_id_one_line_says_so(memory: FakeMemory) -> None:
    bench = Bench("decorated")

    def step() -> None:
        bench.memory.allocate(1)  # A

    monitoring = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    taken = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "other")
    try:
        with pytest.raises(ProfileError, match=r"^no sys.monitoring tool id is free: [^\n]+$"):
            bench.profile(step)
        assert bench.functions() == []
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)
    bench.profile(step)()
    assert bench.nets("A") == [1]
    bench.close()


@pytest.mark.skipif(OLD, reason="sys.monitoring came with 3.12")
def test_the_tool_id_is_given_back_and_taken_again(memory: FakeMemory) -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    bench = Bench("decorated")

    def held() -> list[int]:
        return [tool for tool in range(6) if monitoring.get_tool(tool) == "tensorlens"]

    def step() -> None:
        bench.memory.allocate(1)  # A

    before = held()
    for _ in range(3):
        profiler = bench.another_profiler(step)
        with profiler:
            assert len(held()) == len(before) + 1
            step()
        assert held() == before
        (function,) = profiler.result().functions
        assert function.calls == 1
        profiler.close()
        assert held() == before
    bench.others.clear()
