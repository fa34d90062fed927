"""A recording in programs that fork, are interrupted, end early, nest, or hold very much.

It has a process of its own: it fills what one has for stacks, and no later test would see any.
"""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import tensorlens
from tensorlens import record
from tensorlens.errors import UsageError
from tensorlens.frameworks.torch import recorder as native
from tensorlens.recording import running
from tests import warm
from tests.torch.recorder_checks import Lines, counting_allocator, levels

ROOT = Path(__file__).parents[2]
lines = Lines(__file__)


@pytest.fixture(scope="module")
def allocator():
    return counting_allocator()


@pytest.fixture(autouse=True)
def _nothing_is_left_on(allocator):
    assert (running(), allocator.library.tl_is_recording()) == ([], 0)
    yield
    gc.collect()
    assert (running(), allocator.library.tl_is_recording()) == ([], 0)


def sizes(recording):
    return [event.nbytes // 4 for event in recording.log if event.action == "alloc"]


def test_a_forked_child_records_for_itself(allocator):
    with record(names=False) as recording:
        torch.empty(10)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.empty(11)
                with record(limit=1, names=False) as own:
                    torch.empty(12)
                passed = sizes(own) == [12] and sizes(recording) == []
                passed = passed and recording.stop() is recording
                with record(limit=1, names=False) as ring:
                    for _ in range(9000):
                        torch.empty(13)
                passed = passed and ring.origin.dropped + 2 * len(sizes(ring)) == 18_000
                status = 0 if passed and levels(ring.log)[-1] == allocator.allocated() else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        torch.empty(14)
    assert sizes(recording) == [10, 14]


def test_workers_of_a_loader(allocator):
    data = torch.utils.data.TensorDataset(torch.randn(8, 100))
    with record(names=False) as recording:
        batches = list(torch.utils.data.DataLoader(data, batch_size=4, num_workers=2))
        total = allocator.allocated()
    assert len(batches) == 2
    assert levels(recording.log)[-1] == total


def test_deeper_than_a_stack_is_read(allocator):
    def down(depth):
        return down(depth - 1) if depth else torch.empty(5)  # at the bottom

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        with record(names=False) as recording:
            down(900)
    finally:
        sys.setrecursionlimit(limit)
    (event,) = (event for event in recording.log if event.action == "alloc")
    assert len(event.stack) == 512
    assert {frame.lineno for frame in event.stack} == {lines("at the bottom")}


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(context, given, depth):
        if depth:
            return Nested.apply(given, depth - 1)
        return torch.cat([given, given])  # nested forward

    @staticmethod
    def backward(context, gradient):
        return gradient[: len(gradient) // 2], None


def test_more_operators_inside_each_other_than_are_kept(allocator):
    given = torch.randn(30, requires_grad=True)
    with record(names=False) as recording:
        result = Nested.apply(given, 60)
        after = torch.cat([result, result])  # after nested
    inner, outer = (event for event in recording.log if event.action == "alloc")
    assert (inner.nbytes, inner.stack[0].lineno) == (240, lines("nested forward"))
    assert (outer.nbytes, outer.stack[0].lineno) == (480, lines("after nested"))
    assert (outer.context.op, outer.context.node) == ("aten::cat", None)
    assert after.numel() == 120


def test_begun_and_ended_inside_of_backward(allocator):
    given = torch.randn(6, requires_grad=True)
    begun = []

    def begin(gradient):
        begun.append(record(names=False).start())

    first = given.exp()
    first.register_hook(begin)
    first.sin().sum().backward()
    begun[0].stop()
    assert sizes(begun[0]) == [6]

    with record(names=False) as ended:
        second = given.exp()
        second.register_hook(lambda gradient: ended.stop() and None)
        second.sin().sum().backward()
    # exp, sin, the sum and its gradient, cos and its product; not what comes after the hook
    assert sizes(ended) == [6, 6, 1, 1, 6, 6]


def test_recording_in_a_generator(allocator):
    def generate():
        with record(names=False) as recording:
            yield recording
            torch.empty(21)
            yield recording

    source = generate()
    recording = next(source)
    torch.empty(20)
    next(source)
    source.close()
    torch.empty(22)
    assert sizes(recording) == [20, 21]


def test_beside_torchs_profiler(allocator):
    layer = nn.Linear(6, 7)
    activities = [torch.profiler.ProfilerActivity.CPU]

    def step():
        layer(torch.ones(3, 6)).exp().sum().backward()
        layer.zero_grad()

    with record(names=False) as alone:
        step()
    with record(names=False) as around, torch.profiler.profile(activities=activities):
        step()
    with torch.profiler.profile(activities=activities), record(names=False) as inside:
        step()

    def told(recording):
        return [
            (event.nbytes, event.context.op, event.context.node)
            for event in recording.log
            if event.action == "alloc"
        ]

    assert told(around)[-len(told(alone)) :] == told(inside) == told(alone)


def test_around_our_own_tools(allocator, capsys):
    layer = nn.Linear(3, 3)

    @tensorlens.profile(stream=sys.stderr)
    def function():
        with record() as inner:
            torch.empty(5)
            tensorlens.MemReporter(layer).snapshot()
        return inner

    with record() as outer:
        inner = function()
        tensorlens.MemReporter(layer).report()
    assert sizes(inner) == sizes(outer) == [5]


def test_many_recordings_one_after_the_other(allocator):
    psutil = pytest.importorskip("psutil")
    layer = nn.Linear(6, 7)

    def once():
        with record(names=False) as recording:
            torch.ones(3).exp_()
            layer.weight.detach().sin()
        return recording

    for _ in range(10):
        once()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(50):
        once()
    gc.collect()
    # 50 chunks of the log would be 6 MiB
    assert psutil.Process().memory_info().rss - before < 4 << 20


def test_threads_that_end_do_not_pile_up(allocator):
    psutil = pytest.importorskip("psutil")
    layer = nn.Linear(6, 7)

    def work():
        layer(torch.ones(3, 6)).sum().backward()

    with record(limit=1, names=False) as recording:
        for number in range(1100):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            if number == 400:
                before = psutil.Process().memory_info().rss
        grown = psutil.Process().memory_info().rss - before
    assert recording.origin.dropped
    assert grown < 4 << 20


def test_interrupt_at_any_instruction(allocator):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread hears signals")

    def interrupt(*_):
        raise KeyboardInterrupt

    chance = random.Random(4)
    before = signal.signal(signal.SIGALRM, interrupt)
    hits = 0
    try:
        for _ in range(150):
            recording = record(names=False)
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.001)
                with recording:
                    torch.empty(5)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
            recording.stop()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gc.collect()
    assert not allocator.library.tl_is_recording()
    with record(names=False) as recording:
        torch.empty(6)
    assert sizes(recording) == [6]


def test_no_memory_to_begin_with(allocator, monkeypatch):
    with record(names=False):
        pass
    real = native.TorchRecorder.start_ops

    def fail(self):
        raise MemoryError

    monkeypatch.setattr(native.TorchRecorder, "start_ops", fail)
    refused = record(names=False).start()
    assert refused.failure is not None and "MemoryError" in refused.failure
    refused.stop()
    monkeypatch.setattr(native.TorchRecorder, "start_ops", real)
    with record(names=False) as recording:
        torch.empty(6)
    assert sizes(recording) == [6]


def test_a_recording_begins_once_and_has_marks_while_it_is_on(allocator):
    recording = record(limit=1, names=False).start().stop()
    with pytest.raises(UsageError, match="started before"):
        recording.start()
    with pytest.raises(UsageError, match="that is on"):
        recording.mark("late")


LEFT_ON = """
import sys, threading, torch
from tensorlens import record
recording = record().start()
kept = torch.nn.Linear(5, 5)
other = record().start()
threads = [threading.Thread(target=lambda: kept(torch.ones(5)).sum().backward()) for _ in range(3)]
for thread in threads: thread.start()
print("done")
sys.exit(7)
"""


def done_without_memory(program):
    done = subprocess.run(
        [*warm.python(), "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    refused = ("MemoryError", "bad_alloc", "allocate")
    # the program's own error: what is refused to a recorder would end it by a signal
    if done.returncode == 1 and any(text in done.stderr for text in refused):
        pytest.skip("the C library left too little memory for the program itself")
    return done


SCARCE = """
import ctypes, resource, torch
from tensorlens import record
empty = torch.empty
malloc = ctypes.CDLL(None).malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
recording = record(limit=10**9, names=False)
with recording:
    kept = empty(77)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), resource.RLIM_INFINITY))
    # more than is free: the oldest are folded, into a table that is made now
    for _ in range(200_000): empty(1)
    # nothing is left that another table could lie in
    for nbytes in (1 << 20, 1 << 16, 1 << 12, 1 << 11):
        while malloc(nbytes): pass
    for _ in range(100_000): empty(1)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log = recording.log
first = [event for event in log if event.nbytes == 308]
print(recording.origin.dropped > 0, len(first), log[-1].action)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much there is")
def test_oldest_events_are_dropped_without_memory(allocator):
    done = done_without_memory(SCARCE)
    # 300,000 pairs of events are 19.2 MB
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 1 free\n", "")


@pytest.mark.parametrize("ending", ["", "import os; sys.stdout.flush(); os._exit(7)"])
def test_left_on_at_the_programs_end(allocator, ending):
    program = LEFT_ON.replace("sys.exit(7)", ending or "sys.exit(7)")
    python = warm.python(ends=not ending)
    done = subprocess.run(
        [*python, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "done\n", "")
