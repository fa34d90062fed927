"""What fails inside tensorlens never reaches the program, and is said in the function's note."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import Bench, FakeFramework, FakeMemory

from tensorlens import LineReport
from tensorlens.lines import ProfiledBlock, activation, write_of_worker


@pytest.mark.parametrize("error", [RuntimeError("driver lost"), MemoryError()])
@pytest.mark.parametrize("read", [1, 2, 3, 4])
def test_a_read_that_fails_costs_its_line_only(
    bench: Bench, memory: FakeMemory, read: int, error: Exception
) -> None:
    @bench.profile
    def step() -> int:
        memory.allocate(1)  # A
        memory.allocate(20)  # B
        return memory.allocated  # C

    memory.failures[read] = error  # read 1 begins A, 2 ends it, 3 ends B, 4 ends C
    assert step() == 21
    note = bench.function("step").note
    assert note is not None
    assert note.startswith(f"a line could not be measured: {type(error).__name__}")
    # the line after the one that could not end is the first that can begin again
    expected = {1: [0, 1, 1], 2: [0, 0, 1], 3: [1, 0, 0], 4: [1, 1, 0]}
    assert bench.hits("A", "B", "C") == expected[read]
    assert bench.is_idle()
    memory.failures.clear()
    step()
    assert bench.at("A").net_max == 1
    assert bench.is_idle()


@pytest.mark.parametrize(
    "refused", ["tensorlens.guards._handlers", "tensorlens.lines.activation.error_line"]
)
def test_where_there_is_no_memory_to_say_what_failed_the_program_goes_on(
    bench: Bench, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*given: object) -> None:
        raise MemoryError

    @bench.profile
    def step() -> int:
        memory.allocate(1)
        return memory.allocated

    monkeypatch.setattr(refused, refuse)
    memory.failures[2] = MemoryError()
    assert step() == 1
    note = bench.function("step").note
    assert note is not None
    assert "memory" in note.lower()
    assert bench.is_idle()


def test_a_read_that_fails_in_a_generator(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def numbers() -> Iterator[int]:
        for number in range(3):
            memory.allocate(1)
            yield number

    for read in range(1, 14):
        memory.reads = 0
        memory.failures = {read: RuntimeError("driver lost")}
        assert list(numbers()) == [0, 1, 2]
        assert "driver lost" in str(bench.function("numbers").note)
        assert bench.is_idle()


def test_the_peak_of_a_line_that_failed_still_reaches_the_caller(
    bench: Bench, memory: FakeMemory
) -> None:
    @bench.profile
    def inner() -> None:
        memory.spike(800)  # A
        memory.free(0)  # B

    @bench.profile
    def outer() -> None:
        inner()  # C
        memory.free(0)  # D

    memory.failures[3] = RuntimeError("driver lost")  # 1 begins C, 2 begins A, 3 ends A
    outer()
    assert bench.hits("A", "C") == [0, 1]
    assert bench.peaks("C", "D") == [800, 0]


def test_a_counter_that_cannot_be_made_is_said(bench: Bench, memory: FakeMemory) -> None:
    class Broken(FakeFramework):
        def cpu_counter(self) -> FakeMemory | None:
            raise RuntimeError("no allocator")

    @bench.profile
    def step() -> int:
        memory.allocate(5)  # A
        return 5

    if bench.enabled:
        bench.profiler.disable_by_count()
        bench.enabled = False
    bench.way = "decorated"
    step = bench.profiler(step)
    bench.frameworks.append(Broken())
    assert step() == 5
    bench.frameworks.clear()
    assert "a call could not be measured: RuntimeError: no allocator" in str(
        bench.function("step").note
    )
    assert step() == 5
    assert bench.at("A").net == 5
    assert bench.is_idle()


@pytest.mark.parametrize("read", [1, 2, 3])
def test_an_interrupt_that_arrives_inside_a_hook_passes_and_leaves_things_usable(
    bench: Bench, memory: FakeMemory, read: int
) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A
        memory.allocate(20)  # B

    memory.failures[read] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        step()
    memory.failures.clear()
    if bench.enabled:  # on 3.11, CPython removes a trace function that raises
        bench.profiler.disable_by_count()
        bench.profiler.enable_by_count()
    assert bench.is_idle()
    bench.profiler.clear()
    memory.free(memory.allocated)
    step()
    assert bench.nets("A", "B") == [1, 20]
    assert bench.peaks("A", "B") == [1, 21]
    assert bench.hits("A", "B") == [1, 1]
    assert bench.is_idle()


@pytest.mark.parametrize("reading", range(1, 7))
def test_an_interrupt_between_two_steps_of_a_hook_charges_nothing_wrongly(
    bench: Bench, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, reading: int
) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)  # A
        memory.allocate(20)  # B

    clock = iter(range(1_000_000, 2_000_000))
    interrupted_at = 1_000_000 + reading - 1

    def interrupted_clock() -> int:
        now = next(clock)
        if now == interrupted_at:
            raise KeyboardInterrupt
        return now

    monkeypatch.setattr(activation, "perf_counter_ns", interrupted_clock)
    with pytest.raises(KeyboardInterrupt):
        step()
    function = bench.function("step")
    assert {line.lineno for line in function.lines} == set(
        range(function.first_line, function.first_line + len(function.lines))
    )
    for line in function.lines:
        assert line.hits <= 1
        assert line.time_ns < 10
    assert bench.nets("A", "B") in ([None, None], [1, None], [1, 20])


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later have no trace function")
def test_a_trace_function_that_was_taken_away_is_said(memory: FakeMemory) -> None:
    # a block is in a frame that runs already: on 3.11 that takes a trace function
    bench = Bench("around")
    block = ProfiledBlock(bench.engine, sys._getframe())
    bench.memory.allocate(1)
    sys.settrace(None)
    bench.memory.allocate(20)
    block.close(sys._getframe(), None)
    assert block.function.account.failure == (
        "something removed the trace function: lines that ran after it are missing"
    )
    assert bench.is_idle()
    bench.close()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later have no trace function")
def test_a_block_that_ends_in_another_thread_says_so(memory: FakeMemory) -> None:
    bench = Bench("around")
    frame = sys._getframe()
    block = ProfiledBlock(bench.engine, frame)
    thread = threading.Thread(target=lambda: block.close(frame, None))
    thread.start()
    thread.join()
    sys.settrace(None)
    frame.f_trace = None
    assert block.function.account.failure == (
        "the block went on in another thread: on Python 3.11 its lines there are missing"
    )
    bench.close()


def test_the_report_of_a_worker_whose_folder_is_gone_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    report = LineReport((), ())
    assert write_of_worker(report, tmp_path / "run.json")
    (written,) = tmp_path.iterdir()
    assert LineReport.from_json(written.read_text()) == report
