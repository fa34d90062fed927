"""Traces of torch.profiler read as recordings."""

import gzip
import json

import pytest

from tensorlens import load
from tensorlens.errors import FileFormatError
from tensorlens.jobs import rank_of
from tensorlens.loading import parse


def memory(time, address, nbytes, total, device=(1, 0)):
    kind, index = device
    figures = {"Device Type": kind, "Device Id": index, "Addr": address, "Bytes": nbytes,
               "Total Allocated": total}  # fmt: skip
    return {"ph": "i", "name": "[memory]", "tid": 7, "ts": time, "args": figures}


def a_range(category, name, time, duration):
    return {"ph": "X", "cat": category, "name": name, "tid": 7, "ts": time, "dur": duration}


EVENTS = [
    a_range("user_annotation", "ProfilerStep#3", 100.0, 50),
    a_range("python_function", "train.py(12): step", 100.0, 9),
    a_range("python_function", "torch/nn/modules/linear.py(118): forward", 101.0, 5),
    a_range("cpu_op", "aten::linear", 101.0, 4),
    a_range("cpu_op", "aten::addmm", 102.0, 2),
    # 1,000 bytes were allocated before the trace, of which it frees 300
    memory(102.5, 64, 500, 1500),
    memory(110, 32, -300, 1200),
    a_range("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 120, 10),
    a_range("cpu_op", "aten::mm", 121, 2),
    memory(121.5, 96, 800, 2000),
    memory(121.6, 1, 10, 10, device=(0, -1)),
    memory(140, 96, -800, 1200),
]


def trace(events=EVENTS, **more):
    return json.dumps({"schemaVersion": 1, "traceEvents": events, **more})


def test_allocations_have_their_operators_lines_and_what_was_there_before():
    found = parse(trace())
    assert [(each.action, each.device, each.nbytes) for each in found.events] == [
        ("start", "cuda:0", 300), ("start", "cuda:0", 700), ("alloc", "cuda:0", 500),
        ("free", "cuda:0", 300), ("alloc", "cuda:0", 800), ("alloc", "cpu", 10),
        ("free", "cuda:0", 800),
    ]  # fmt: skip
    assert found.peak("cuda:0").bytes == 700 + 500 + 800
    assert found.peak("cpu").bytes == 10
    forward, backward = found.events[2], found.events[4]
    assert [(each.filename, each.lineno, each.user) for each in forward.stack] == [
        ("torch/nn/modules/linear.py", 118, False), ("train.py", 12, True)
    ]  # fmt: skip
    assert (forward.context.outer, forward.context.op) == ("aten::linear", "aten::addmm")
    assert forward.time_ns == 0 and backward.time_ns == 19_000
    assert (backward.context.node, backward.context.phase) == ("AddmmBackward0", "backward")
    # the step began before the first event
    assert [(mark.name, mark.row) for mark in found.events.marks] == [("ProfilerStep#3", 2)]


def test_a_rank_is_what_the_trace_says():
    found = parse(trace(distributedInfo={"rank": 3, "world_size": 8}))
    assert rank_of(found, "run.rank0.json") == (3, 8)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (EVENTS[:5], "a trace without allocations: record it with profile_memory=True"),
        ([{"name": "[memory]", "ts": 1}], "damaged"),
        ([memory("soon", 1, 1, 1)], "damaged"),
    ],
)
def test_a_trace_that_says_nothing_gets_one_line(events, why):
    with pytest.raises(FileFormatError, match=why):
        parse(trace(events))


@pytest.mark.parametrize("time", [10**400, float("inf"), float("nan"), "soon", None])
def test_a_time_that_is_none_gets_one_line(time):
    for place in (6, 3):
        events = [*EVENTS]
        events[place] = {**EVENTS[place], "ts": time}
        with pytest.raises(FileFormatError, match=r"^damaged trace: [^\n]*$"):
            parse(trace(events))


@pytest.mark.parametrize("figure", [{"Bytes": 10**30}, {"Bytes": 1.7}, {"Addr": "here"}])
def test_bytes_that_are_none_get_one_line(figure):
    event = memory(1, 64, 500, 1500)
    event["args"].update(figure)
    with pytest.raises(FileFormatError, match=r"^damaged trace: [^\n]*$"):
        parse(trace([event]))


def test_each_event_has_the_ranges_that_are_open_in_its_thread():
    depth = 20_000
    opened = [a_range("cpu_op", f"aten::op{n}", n, 2 * depth - 2 * n) for n in range(depth)]
    lines = [
        a_range("python_function", f"a.py({n + 1}): f", n, 2 * depth - 2 * n - 1) for n in range(3)
    ]
    events = [memory(depth + n, n, 1, n + 1) for n in range(depth)]
    found = parse(trace([*opened, *lines, memory(2, depth, 8, 8), *events])).events
    assert len(found) == depth + 1
    for each in found[0], found[1]:
        assert [frame.lineno for frame in each.stack] == [3, 2, 1]
    assert (found[1].context.outer, found[1].context.op) == ("aten::op0", f"aten::op{depth - 1}")
    # the inner ones have ended by now
    last = found[-1]
    assert [frame.lineno for frame in last.stack] == [1]
    assert (last.context.outer, last.context.op) == ("aten::op0", "aten::op1")


def test_a_trace_may_be_packed(tmp_path):
    file = tmp_path / "worker.pt.trace.json.gz"
    file.write_bytes(gzip.compress(trace().encode()))
    assert load(file).peak("cpu").bytes == 10
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match=r"json\.gz: damaged gzip file"):
        load(file)


def test_optimizer_allocations_outside_operators_have_their_phase():
    events = [
        a_range("user_annotation", "Optimizer.step#Adam.step", 10, 9),
        memory(12, 64, 512, 512),
    ]
    (event,) = parse(trace(events)).events
    assert event.context.phase == "optimizer"
