"""The line table takes what a recording knows of backward, by file and line."""

import sys
from collections.abc import Iterator

import pytest
from bench import Bench, FakeMemory

from tensorlens import Recording
from tensorlens.lines import layouts
from tensorlens.recording import record as backward
from tensorlens.records import ALLOC, Context, EventLog, Frame

ENGINE = Frame("/env/site-packages/torch/autograd/graph.py", 9, "_engine_run_backward", False)


def recording(
    *made: tuple[int, int], filename: str = __file__, device: str = "cpu", user: bool = True
) -> Recording:
    """A recording of backward: so many bytes for a node that a line made."""
    log = EventLog()
    stack = log.stacks.push(log.stacks.push(-1, Frame("/me/train.py", 9, "train")), ENGINE)
    for number, (nbytes, lineno) in enumerate(made, 1):
        forward = log.stacks.push(-1, Frame(filename, lineno, "step", user))
        context = Context(op="aten::mm", node="MmBackward0", forward=forward)
        log.append(ALLOC, device, 64 * number, nbytes, number, stack, context)
    return Recording(log)


@pytest.fixture(autouse=True)
def no_recording() -> Iterator[None]:
    backward._total = backward.BackwardLines()
    yield
    backward._total = backward.BackwardLines()


def figures(bench: Bench) -> list[int | None]:
    lines = [line for each in bench.profiler.result().functions for line in each.lines]
    return [memory.backward for line in lines for memory in line.memory.values()]


def test_backward_bytes_belong_to_line_and_file(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)
        memory.allocate(2)

    step()
    assert figures(bench) == [None, None]
    first = bench.profiler.result().functions[0].first_line
    # one without a line of the function says nothing of it
    backward.add_backward(recording((100, first + 2), filename="/me/other.py"))
    backward.add_backward(recording((100, first + 9)))
    assert figures(bench) == [None, None]
    # line 2 of the function, twice, and one that is none of its
    backward.add_backward(recording((100, first + 2), (30, first + 2), (5, first + 9)))
    assert figures(bench) == [130, 0]


def test_recordings_one_after_the_other_are_added_up(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def one() -> None:
        memory.allocate(1)

    @bench.profile
    def other() -> None:
        memory.allocate(2)

    @bench.profile
    def unseen() -> None:
        memory.allocate(3)

    one(), other(), unseen()
    lines = [each.lines[-1].lineno for each in bench.profiler.result().functions]
    backward.add_backward(recording((328_704, lines[0])))
    backward.add_backward(recording((64, lines[1])))
    backward.add_backward(recording((8, lines[0])))
    # its device was not recorded
    backward.add_backward(recording((7, lines[1]), device="cuda:7"))
    assert figures(bench) == [328_712, 64, None]
    report = bench.profiler.result()
    remarks = [layout.remarks for layout in layouts(report)]
    text = "Backward is blank: no recording saw these lines"
    assert remarks == [(), (), (text,)]
    assert str(report).count(text) == 1


def test_lines_of_a_library_are_not_known(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)

    step()
    (function,) = bench.profiler.result().functions
    # backward is charged to the line of the user that called it
    backward.add_backward(recording((100, function.lines[-1].lineno), user=False))
    assert figures(bench) == [None]


def test_overlapping_recordings_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = recording((100, 1), (7, 2)), recording((60, 1))
    others = [outer]
    monkeypatch.setattr(backward, "running", lambda: others)
    backward.add_backward(inner)
    assert backward.total_backward().nbytes == {"cpu": {(__file__, 1): 100, (__file__, 2): 7}}
    others.clear()
    backward.add_backward(outer)
    backward.add_backward(recording((1, 1)))
    assert backward.total_backward().nbytes == {"cpu": {(__file__, 1): 101, (__file__, 2): 7}}


def test_nothing_is_imported_where_nothing_was_recorded(
    bench: Bench, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.profile
    def step() -> None:
        memory.allocate(1)

    step()
    (function,) = bench.profiler.result().functions
    backward.add_backward(recording((1, function.lines[-1].lineno)))
    assert figures(bench) == [1]
    monkeypatch.delitem(sys.modules, backward.__name__)
    assert figures(bench) == [None]
