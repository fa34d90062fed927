"""The line table takes what a recording knows of backward, by file and line."""

import sys

import pytest
from bench import Bench, FakeMemory

from tensorlens.capture import backward
from tensorlens.records.events import ALLOC, Context, EventLog, Frame
from tensorlens.records.recordings import Recording

ENGINE = Frame("/env/site-packages/torch/autograd/graph.py", 9, "_engine_run_backward", False)


def recording(*made: tuple[int, int], filename: str = __file__, device: str = "cpu") -> Recording:
    """A recording of backward: so many bytes for a node that a line made."""
    log = EventLog()
    stack = log.stacks.push(log.stacks.push(-1, Frame("/me/train.py", 9, "train")), ENGINE)
    for number, (nbytes, lineno) in enumerate(made, 1):
        forward = log.stacks.push(-1, Frame(filename, lineno, "step"))
        context = Context(op="aten::mm", node="MmBackward0", forward=forward)
        log.append(ALLOC, device, 64 * number, nbytes, number, stack, context)
    return Recording(log)


@pytest.fixture(autouse=True)
def no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "_last", None)


def figures(bench: Bench) -> list[int | None]:
    (function,) = bench.profiler.result().functions
    return [memory.backward for line in function.lines for memory in line.memory.values()]


def test_it_is_of_the_line_and_file_and_zero_elsewhere(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)
        memory.allocate(2)

    step()
    assert figures(bench) == [None, None]
    first = bench.profiler.result().functions[0].first_line
    # line 2 of the function, twice, and one that is none of its
    backward.keep(recording((100, first + 2), (30, first + 2), (5, first + 9)))
    assert figures(bench) == [130, 0]
    # one that has ended without a line of this file says nothing of it
    backward.keep(recording((100, first + 2), filename="/me/other.py"))
    assert figures(bench) == [None, None]
    # the last one tells, and only of its device
    backward.keep(recording((7, first + 3), device="cuda:7"))
    assert figures(bench) == [None, None]


def test_nothing_is_imported_where_nothing_was_recorded(
    bench: Bench, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)

    step()
    monkeypatch.delitem(sys.modules, "tensorlens.capture.record")
    monkeypatch.setattr(backward, "_last", {"cpu": {}})
    assert figures(bench) == [None]


def test_what_is_kept_of_a_recording_is_small() -> None:
    kept = recording((100, 1), (30, 1), (7, 2))
    backward.keep(kept)
    assert backward.by_line() == {"cpu": {(__file__, 1): 130, (__file__, 2): 7}}
