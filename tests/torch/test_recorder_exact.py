"""The log says at every event what the counting allocator says, and where each was."""

import queue
import re
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tensorlens import record
from tests.torch.recorder_checks import (
    Lines,
    allocations,
    charges,
    counting_allocator,
    level_at,
    levels,
)

lines = Lines(__file__)


@pytest.fixture(scope="module")
def allocator():
    return counting_allocator()


def small_net():
    net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
    return net, torch.optim.Adam(net.parameters())


def test_levels_between_statements_and_in_hooks(allocator):
    net, optimizer = small_net()
    inputs = torch.randn(5, 6, requires_grad=True)
    seen = {}

    def sample(name):
        recording.mark(name)
        seen[name] = allocator.allocated()

    for number, layer in enumerate(net):
        layer.register_forward_hook(lambda *_, number=number: sample(f"forward {number} {step}"))
        layer.register_full_backward_hook(
            lambda *_, number=number: sample(f"backward {number} {step}")
        )
    with record(names=False) as recording:
        sample("start")
        for step in range(3):
            optimizer.zero_grad()
            sample(f"zeroed {step}")
            loss = net(inputs).exp().sum()
            sample(f"loss {step}")
            loss.backward()
            sample(f"backward {step}")
            optimizer.step()
            sample(f"stepped {step}")
            del loss
        sample("end")
    assert len(seen) == 2 + 3 * (4 + 3 + 3)
    assert {name: level_at(recording.log, name) for name in seen} == seen


def test_the_peak_is_the_allocators(allocator):
    net, optimizer = small_net()
    inputs = torch.randn(5, 6)
    with record(names=False) as recording:
        allocator.read()
        for _ in range(3):
            optimizer.zero_grad()
            net(inputs).exp().sum().backward()
            optimizer.step()
        allocated, peak, _ = allocator.read()
    assert max(levels(recording.log)) == peak == recording.peak("cpu").bytes
    assert levels(recording.log)[-1] == allocated


def test_threads_that_allocate_at_once(allocator):
    with record(names=False) as recording:
        allocator.read()

        def work(size):
            for index in range(300):
                kept = [torch.empty(size + index % 7) for _ in range(5)]  # in parallel
                del kept

        threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        allocated, peak, _ = allocator.read()
    log = recording.log
    assert max(levels(log)) == peak
    assert levels(log)[-1] == allocated
    made = [event for event in log if event.action == "alloc"]
    assert len(made) == 4 * 300 * 5
    assert sum(event.nbytes for event in made) == 4 * sum(
        5 * (100 * k + index % 7) for k in range(1, 5) for index in range(300)
    )
    assert {event.stack[0].lineno for event in made} == {lines("in parallel")}
    assert log.time == type(log.time)("q", sorted(log.time))
    assert {event.context.thread for event in made} <= {0, 1, 2, 3, 4}
    # each was freed by the thread that made it
    for event in made:
        assert log[event.pair].context.thread == event.context.thread


def test_blocks_that_another_thread_frees(allocator):
    given = queue.SimpleQueue()

    def consume():
        while given.get() is not None:
            pass

    thread = threading.Thread(target=consume)
    thread.start()
    with record(names=False) as recording:
        for _ in range(100):
            given.put(torch.empty(1000))
        given.put(None)
        thread.join()
    made = [event for event in recording.log if event.action == "alloc"]
    assert [event.nbytes for event in made] == [4000] * 100
    freed = [recording.log[event.pair] for event in made]
    assert {event.action for event in freed} == {"free"}
    assert all(one.address == other.address for one, other in zip(made, freed, strict=True))
    assert {event.context.thread for event in made} == {0}


def test_the_recordings_own_thread_is_number_0(allocator):
    made = {}

    def work():
        with record(names=False) as recording:
            torch.empty(3)
        made["inner"] = recording

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert {event.context.thread for event in made["inner"].log if event.action == "alloc"} == {0}


def test_numbers_of_threads_are_used_again(allocator):
    # each thread that there is may end meanwhile, and give its number to one of these
    others = len([*Path("/proc/self/task").iterdir()])
    with record(names=False) as recording:
        for _ in range(200):
            thread = threading.Thread(target=torch.empty, args=(3,))
            thread.start()
            thread.join()
            # Python is done with it before the system is
            while Path(f"/proc/self/task/{thread.native_id}").exists():
                time.sleep(0.001)
    made = [event for event in recording.log if event.action == "alloc"]
    assert len(made) == 200 > others
    assert len({event.context.thread for event in made}) <= others


def test_every_line_with_its_operator_and_phase(allocator):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 4, bias=False)

        def forward(self, given):
            inner = self.inner(given)  # line inner
            return torch.cat([inner, given], 1)  # line cat

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    with record() as recording:
        given = torch.empty(32, 2)  # line given
        first = net(given).exp()  # line exp
        second = torch.cat([first, first])  # line both
        second.sum().backward()
        optimizer.step()  # line step
    expected = {
        (lines("line given"), 4 * 64, "aten::empty", None, "other"),
        (lines("line inner"), 4 * 128, "aten::mm", "net.inner", "forward"),
        (lines("line cat"), 4 * 192, "aten::cat", "net", "forward"),
        (lines("line exp"), 4 * 192, "aten::exp", None, "forward"),
        (lines("line both"), 4 * 384, "aten::cat", None, "forward"),
        # of both the gradient is cut in two, and the parts are added up
        (lines("line both"), 4 * 192, "aten::add", None, "backward"),
        (lines("line exp"), 4 * 192, "aten::mul", None, "backward"),
        (lines("line inner"), 4 * 8, "aten::mm", "net.inner", "backward"),
        (lines("line step"), 4 * 8, "aten::empty_strided", "net.inner", "optimizer"),
    }
    found = {
        (block.charged.lineno, block.nbytes, block.op, block.module, block.phase)
        for block in allocations(recording)
        if block.nbytes > 8
    }
    assert found == expected
    (momentum,) = (block for block in allocations(recording, "optimizer") if block.nbytes == 32)
    assert (momentum.role, momentum.known) == ("optimizer", True)


def test_the_whole_stack(allocator):
    def inner():
        return torch.empty(7)  # stack inner

    def outer():
        return inner()  # stack outer

    with record(names=False) as recording:
        kept = outer()  # stack called
    (event,) = [event for event in recording.log if event.action == "alloc"]
    own = [frame.lineno for frame in event.stack if frame.filename == __file__]
    assert own == [lines("stack inner"), lines("stack outer"), lines("stack called")]
    assert [frame.function.rpartition(".")[2] for frame in event.stack[:2]] == ["inner", "outer"]
    frames = [frame for frame in event.stack if not frame.filename.startswith("<")]
    assert all(frame.user == (frame.filename == __file__) for frame in frames)
    assert kept.numel() == 7


def test_names_at_either_end_and_between(allocator):
    before = torch.empty(50)
    with record() as recording:
        after = torch.empty(60)
        torch.empty(70)
    start = {event.nbytes: event.label for event in recording.log if event.action == "start"}
    made = {event.nbytes: event.label for event in recording.log if event.action == "alloc"}
    assert start[200].name.endswith("before")
    assert made[240].name.endswith("after")
    assert made[280] is None
    assert (before.numel(), after.numel()) == (50, 60)


def test_a_request_that_fails(allocator):
    with record(names=False) as recording, pytest.raises(RuntimeError):
        torch.empty(1 << 60, dtype=torch.uint8)  # too much
    (event,) = [event for event in recording.log if event.action == "oom"]
    assert event.nbytes == 1 << 60
    assert event.stack[0].lineno == lines("too much")
    assert max(levels(recording.log), default=0) < 1 << 60


def test_results_are_the_same_bits(allocator):
    def trained():
        torch.manual_seed(3)
        net, optimizer = small_net()
        inputs = torch.randn(5, 6)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.dropout(net(inputs), 0.5).exp().sum().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in net.parameters()], torch.rand(3)

    plain, plain_random = trained()
    with record():
        recorded, recorded_random = trained()
    assert all(map(torch.equal, plain, recorded))
    assert torch.equal(plain_random, recorded_random)


def test_nested_and_overlapping_recordings(allocator):
    outer, first, second = (record(names=False) for _ in range(3))
    torch.empty(1)
    with outer:
        torch.empty(2)
        first.start()
        torch.empty(3)
        second.start()
        torch.empty(4)
        first.stop()
        torch.empty(5)
    torch.empty(6)
    second.stop()
    torch.empty(7)
    sizes = [
        [event.nbytes // 4 for event in each.log if event.action == "alloc"]
        for each in (outer, first, second)
    ]
    assert sizes == [[2, 3, 4, 5], [3, 4], [4, 5, 6]]
    assert [each.log[-1].action for each in (outer, first, second)] == ["free"] * 3


def test_marks_are_each_recordings_own(allocator):
    with record(names=False) as outer:
        outer.mark("outer")
        torch.empty(1)
        with record(names=False) as inner:
            inner.mark("inner")
            torch.empty(2)
            outer.mark("later")
    assert [mark.name for mark in outer.marks] == ["outer", "later"]
    assert [mark.name for mark in inner.marks] == ["inner"]
    rows = {mark.name: mark.row for mark in outer.marks}
    # an allocation and a free each
    assert rows["later"] - rows["outer"] == 4


def test_questions_while_recording(allocator):
    before = allocator.allocated()
    with record(names=False) as recording:
        kept = torch.empty(1000)
        so_far = len(recording.events)
        assert recording.peak("cpu").bytes == before + 4000
        other = torch.empty(2000)
        assert len(recording.events) == so_far + 1
        assert recording.peak("cpu").bytes == before + 12000
    assert recording.peak("cpu").bytes == before + 12000
    assert kept.numel() + other.numel() == 3000


def test_exception_ends_the_recording(allocator):
    with pytest.raises(ZeroDivisionError), record(names=False) as recording:
        torch.empty(8)
        raise ZeroDivisionError
    torch.empty(9)
    assert [event.nbytes for event in recording.log if event.action == "alloc"] == [32]


def test_recording_without_operators(allocator):
    with record(ops=False, names=False) as recording:
        net, _ = small_net()
        net(torch.randn(5, 6)).exp().sum().backward()  # without ops
    assert {event.context.op for event in recording.log} == {None}
    assert {event.context.node for event in recording.log} == {None}
    # what backward hands out goes to the line that runs it
    assert set(charges(recording, "backward")) == {lines("without ops")}


def test_a_view_of_the_past_is_not_named_by_what_came_after(allocator):
    # many die and are born at the same addresses with the same sizes
    with record() as recording:
        for _ in range(20):
            torch.empty(777)
        last = torch.empty(777)
    labels = [
        event.label and event.label.name.rpartition(" ")[2]
        for event in recording.log
        if event.action == "alloc"
    ]
    assert labels == [None] * 20 + ["last"]
    assert last.numel() == 777


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nodes_take_no_more_room_than_there_are():
    def size():
        return int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    def step():
        (x * 2).sum().backward()

    x = torch.ones(8, requires_grad=True)
    # what torch needs for the first time
    step()
    with record(names=False):
        before = size()
        step()
        assert size() - before < 4 << 10
